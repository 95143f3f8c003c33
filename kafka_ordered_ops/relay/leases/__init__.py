"""The distribution of records: the state of partitions, and leases."""
