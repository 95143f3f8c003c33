"""Decisions of per-record processing: which record is processed when, and which offsets are done."""
