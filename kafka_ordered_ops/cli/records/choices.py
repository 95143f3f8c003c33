"""Choices of options. Help loads this module, so it imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class OnBad(StrEnum):
    """What to do with a record whose value or key is not JSON, if JSON is requested.

    `FAIL`: end with an error. `SKIP`: leave the record out. `KEEP`: write it, with its bytes as text.
    """

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"


class Format(StrEnum):
    """How records are written."""

    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def is_text(self) -> bool:
        """Whether people can read it."""
        return self in (Format.JSONL, Format.CSV)


class Bytes(StrEnum):
    """How keys and values, which are bytes, become text.

    `TEXT`: UTF-8; any other byte as backslash, x and two digits. `JSON`: parsed and embedded as it is. `BASE64`: exact.
    """

    TEXT = "text"
    JSON = "json"
    BASE64 = "base64"


class OrderBy(StrEnum):
    """The names of `core.release.ordered_release.Order`."""

    TIMESTAMP = "timestamp"
    PARTITION = "partition"
