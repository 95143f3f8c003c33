"""What a sensor's tick looks at, and what it remembers."""
