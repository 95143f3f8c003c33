"""The thread that does everything with Kafka for a server of the relay."""
