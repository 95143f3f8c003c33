"""The one door to confluent-kafka: settings, look-ups, committed offsets, records.

Sentinels (-1, -2, -1001 and their kin), client error codes and client objects stop in this room; what
leaves it are this package's own types and errors.
"""
