"""Which record is processed when, and what is done: decisions of per-record processing."""
