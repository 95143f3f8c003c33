"""Results on stdout, progress and tables for people on stderr."""
