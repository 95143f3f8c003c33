"""Which offsets a window takes: facts in, offset sets out."""
