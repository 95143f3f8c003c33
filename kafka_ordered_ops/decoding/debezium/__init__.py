"""Envelopes of Debezium."""
