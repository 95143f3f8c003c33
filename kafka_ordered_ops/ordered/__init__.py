"""Read records of many partitions in one order, to Arrow."""
