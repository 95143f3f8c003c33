"""Formats of keys and values, as options name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, loads

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.stored_formats import GivenFormat


def given_format(text: str | None, option: str) -> GivenFormat | None:
    """Return a format, whose schema may be in a file; raise `ConfigError`."""
    from kafka_ordered_ops.core.window.formats import SCHEMA_LENGTH_MAX, Avro, Protobuf

    kind, is_file, path = (text or "").partition(":@")
    if not is_file:
        return text
    try:
        if kind == "protobuf":
            return Protobuf(descriptor=Path(path).read_bytes())
        content = Path(path).read_text(encoding="utf-8")
        if kind == "avro":
            return Avro(content)
        if kind == "json":
            return {"format": "json", "fields": loads(content, limit_bytes=SCHEMA_LENGTH_MAX)}
    except (OSError, UnicodeDecodeError, JsonError) as error:
        raise ConfigError(f"{option} {text}: {error}") from None
    raise ConfigError(f"{option} is {text}: give avro:@FILE, protobuf:@FILE or json:@FILE")
