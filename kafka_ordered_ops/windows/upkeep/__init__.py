"""Change a group's progress other than by windows."""
