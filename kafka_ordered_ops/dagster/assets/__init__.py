"""Assets of windows: one in a step, or several."""
