"""Exact sets of offsets, read into Arrow."""
