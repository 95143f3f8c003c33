"""The records of a ledger: their formats, what damages them, and what repairs them."""
