"""Laneway."""
