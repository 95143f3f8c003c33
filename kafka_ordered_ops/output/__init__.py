"""Staging, publishing and reading back a window's files. No pyspark."""
