"""The sensor that waits until a window's partitions are live."""
