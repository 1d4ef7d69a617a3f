"""The lane of one conversation: project, decide, do, commit."""
