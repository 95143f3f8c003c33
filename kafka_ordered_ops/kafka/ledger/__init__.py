"""The ledger: a group's state in a compacted topic, changed inside a fence."""
