"""What a root holds, whose it is, and what heals it."""
