"""What is asked for (a window) and what was resolved (its plan)."""
