"""Queries about a group and its topics, which change nothing."""
