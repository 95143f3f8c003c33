"""Triggers: the sensor's wait, and the watcher of reached cutoffs."""
