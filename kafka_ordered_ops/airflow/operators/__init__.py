"""Operators: one task for a whole window, or separate tasks to plan, process parts, commit and abandon."""
