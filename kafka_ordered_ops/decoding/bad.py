"""What is wrong with the value of one record."""

from __future__ import annotations


class BadValueError(ValueError):
    """A value cannot be decoded; its text is the reason. Stays in this room: callers see `DecodeError`, or a column."""


class ColumnTooLargeError(Exception):
    """The values of a batch take more than one array holds: 2 GiB of bytes, for one."""
