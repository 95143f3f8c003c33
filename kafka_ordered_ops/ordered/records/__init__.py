"""A window's records as columns and pieces of work."""
