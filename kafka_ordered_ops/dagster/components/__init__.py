"""Assets, topics and clusters from YAML."""
