"""Members of live groups, and their transactions."""
