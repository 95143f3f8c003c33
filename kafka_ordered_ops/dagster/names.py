"""Names that Dagster takes."""

from __future__ import annotations

import re


def op_safe(text: str) -> str:
    """A text in the characters of names of ops, sensors and resources: fewer than Kafka's and people's."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)
