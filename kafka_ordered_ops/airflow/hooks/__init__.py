"""The hook behind the connection type ``kafka_windows``."""
