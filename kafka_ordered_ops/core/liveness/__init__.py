"""Whether all records before a cutoff have been written."""
