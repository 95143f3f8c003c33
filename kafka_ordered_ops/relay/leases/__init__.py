"""Who gets which records: the state of a partition, and leases."""
