"""The checks of a sensor's tick, and its cursor."""
