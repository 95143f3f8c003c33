"""Requests to the cluster: with deadlines, retries and named errors."""
