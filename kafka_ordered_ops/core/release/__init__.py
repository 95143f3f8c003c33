"""Release records of many partitions in one order, as soon as no earlier record can arrive."""
