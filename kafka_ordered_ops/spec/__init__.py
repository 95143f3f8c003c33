"""What a caller asks for, as values: where a window goes, and what runs on it. Needs neither Spark nor a client."""
