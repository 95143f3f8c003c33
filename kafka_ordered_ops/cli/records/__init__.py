"""Records as bytes of a format, and where the bytes go."""
