"""Decisions of the relay: the state of its log, and which records its owner may hand out."""
