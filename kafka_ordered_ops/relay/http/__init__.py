"""The relay over HTTP: calls, tokens, limits, the status page."""
