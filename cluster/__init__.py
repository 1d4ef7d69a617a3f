"""Launch and connect, settings, placement of actors on Ray, and the command line."""
