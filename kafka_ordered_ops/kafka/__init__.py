"""The one door to confluent-kafka: settings, look-ups, committed offsets, records.

Sentinels (-1, -2, -1001 and others), client error codes and client objects never leave this room; it returns this
package's own types and errors.
"""
