"""Operators: one task for a whole window, or plan, parts, commit and abandon as tasks of their own."""
