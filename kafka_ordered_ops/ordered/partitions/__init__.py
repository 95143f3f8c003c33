"""The partitions of an ordered read: their state, starts and moves."""
