"""The only package that calls confluent-kafka: settings, look-ups, committed offsets, records.

Sentinels (-1, -2, -1001 and others), client error codes and client objects never leave it: its functions return and raise
our own types and errors.
"""
