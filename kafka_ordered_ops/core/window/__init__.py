"""The request (a window) and the resolved result (its plan)."""
