"""Release records of many partitions in one order, as soon as nothing earlier can come."""
