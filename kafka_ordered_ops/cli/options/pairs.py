"""Options of the form ``KEY=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_ordered_ops.core.errors import ConfigError


def pairs_of(option: str, texts: Sequence[str], *, prefix: str = "") -> list[tuple[str, str]]:
    """Return the keys and values of a repeatable option.

    Raises:
        ConfigError: a text is not a pair, or its key does not begin with the prefix. The message shows no text: it may be
            a secret whose key was forgotten.
    """
    pairs = list[tuple[str, str]]()
    for number, text in enumerate(texts, start=1):
        key, sign, value = text.partition("=")
        key = key.strip()
        if not sign or not key or not key.startswith(prefix):
            raise ConfigError(f"{option} number {number} is not {prefix}KEY=VALUE")
        pairs.append((key, value))
    return pairs
