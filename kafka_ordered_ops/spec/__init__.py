"""A caller's request, as values: where a window goes, and what runs on it. Needs neither Spark nor a Kafka client."""
