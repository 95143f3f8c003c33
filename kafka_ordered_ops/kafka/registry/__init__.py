"""Clients of schema registries: what they have in common, and that of AWS Glue."""
