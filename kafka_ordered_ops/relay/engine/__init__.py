"""The thread of a relay server that does all work with Kafka."""
