"""A group's state, and every change of it."""
