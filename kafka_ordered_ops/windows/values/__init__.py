"""Values of windows as columns: their schemas, what is inferred from them, and bad ones as dead letters."""
