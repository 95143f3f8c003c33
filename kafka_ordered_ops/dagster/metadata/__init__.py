"""Dagster's metadata of a delivered window."""
