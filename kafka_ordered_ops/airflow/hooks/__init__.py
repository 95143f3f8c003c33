"""The hook of the connection type ``kafka_windows``."""
