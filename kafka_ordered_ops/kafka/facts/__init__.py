"""Facts about the logs, for plans and liveness."""
