"""What people write: times, spans, offsets, formats, windows, client settings, URLs and addresses, as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kafka_ordered_ops import ConfigError, Folder, KafkaOrderedOpsError, Window
from kafka_ordered_ops.cli.options import times
from kafka_ordered_ops.cli.options.pairs import pairs_of
from kafka_ordered_ops.core.arguments import as_moment, as_span
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.window.bounds import as_bound
from kafka_ordered_ops.core.window.read_starts import ReadStarts
from kafka_ordered_ops.core.window.stored_formats import as_format, format_to_json
from kafka_ordered_ops.delivery.lineage import namespace_of, place_of
from kafka_ordered_ops.kafka.properties import parse_properties
from kafka_ordered_ops.kafka.schema_registry import Registry
from kafka_ordered_ops.kafka.settings import ClientSettings
from tests.fuzz.borders import Border, Text
from tests.support.stored_values import WINDOW

_TIMES: Final = (
    *("2026-11-20T12:00:00Z", "2026-11-20T12:00:00.123456+05:30", "20261120T120000Z", "2026-W47-5"),
    *("@253402300800000", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999-23:59"),
)
_SPANS: Final = (
    "PT10M",
    "P1D",
    "P1DT12H",
    "PT0.250S",
    "P3W",
    "P999999999D",
    "PT9223372036854775807S",
)


def _time(text: str) -> None:
    moment = as_moment(text, what="cutoff")
    assert as_moment(moment.isoformat(), what="cutoff") == moment


def _cli_time(text: str) -> None:
    with suppress(ConfigError):
        times.bound(text)
    times.moment(text, what="cutoff")


def _span(text: str) -> None:
    span = as_span(text, what="grace")
    milliseconds = round(span.total_seconds() * 1000)
    if milliseconds < 2**53:
        assert as_span(duration_text(milliseconds), what="grace") == span


def _bound(text: str) -> None:
    bound = as_bound(text)
    assert as_bound(str(bound)) == bound


def _starts(text: str) -> None:
    """Of each topic, as the command line has them, and of a read."""
    topics = ["orders", "^rates"]
    starts: Any = times.bounds(text.split("\n"), topics, option="--from")
    ReadStarts.of(starts, topics)


def _format(text: str) -> None:
    """As an argument, and as a plan stores it."""
    wanted = as_format(text, "values")
    stored = format_to_json(wanted)
    assert stored is not None
    again = as_format(json.dumps(stored), "values")
    assert again == wanted


def _window(text: str) -> None:
    """A name or a pattern, and one that is left out."""
    topic, _, excluded = text.partition("\n")
    window = Window(topic, "2026-11-20T12:00:00Z", exclude=excluded or ())
    assert Window.from_json(json.loads(json.dumps(window.to_json()))) == window


def _stored_window(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    Window.from_json(value)


def _positions(text: str) -> None:
    """Of single partitions, as people store those of a reader."""
    try:
        pairs = json.loads(text)
    except (ValueError, RecursionError):
        return
    starts: dict[Any, Any] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        match pair:
            case [[(str() | int() | None) as topic, (str() | int() | float()) as number], start]:
                starts[topic, number] = start
    ReadStarts.of(starts, ["orders"])


def _settings(text: str) -> None:
    settings = ClientSettings.from_mapping(parse_properties(text))
    # No secret is in the text forms.
    shown = repr(settings)
    assert not any(len(secret) > 8 and secret in shown for secret in settings.secret_values())
    if url := settings.registry.get("url"):
        repr(Registry(url))


def _pairs(text: str) -> None:
    ClientSettings.from_mapping(dict(pairs_of("-X", text.split("\n"))))


def _relay_url(text: str) -> None:
    from kafka_ordered_ops.relay.urls import check_url

    check_url(text, has_token=True, plain_http=False)


def _address(text: str) -> None:
    """Of an output, and as lineage names it."""
    folder = Folder(text)
    place_of(str(folder.path))


def _brokers(text: str) -> None:
    namespace_of(ClientSettings.of(text).bootstrap_servers)


#: By name: what reads a text, and valid ones.
_READS: Final[dict[str, tuple[Callable[[str], object], tuple[str, ...]]]] = {
    "text: time": (_time, _TIMES[:3]),
    "text: time of the command line": (
        _cli_time,
        (*_TIMES[:3], "2026-11-20", "now", "today", "-1h", "-1d12h", "-PT1H"),
    ),
    "text: span": (_span, _SPANS[:6]),
    "text: starting offsets": (
        _bound,
        (*_TIMES[:2], _TIMES[4], "earliest", "committed", "offset:12", "-PT1H", "-P1DT3H"),
    ),
    "text: starting offsets of topics": (
        _starts,
        ("latest", "orders=earliest\n^rates=-1h", "orders=offset:7\n2026-11-20T12:00:00Z"),
    ),
    "text: format": (
        _format,
        (
            *(
                "avro",
                "avro:orders-value",
                "protobuf:x",
                "json",
                "debezium-avro",
                "json-inferred:evolve",
            ),
            "json:id int64, at timestamp[ms, UTC], price decimal128(9, 2)",
            json.dumps({"format": "avro", "schema": '"long"', "framing": "none"}),
            json.dumps(
                {"format": "json", "fields": [["id", "int64"], ["tags", {"list": "string"}]]}
            ),
            json.dumps(
                {
                    "format": "json",
                    "infer": "freeze",
                    "inferred": [["s", {"struct": [["a", "date32[day]"]]}]],
                }
            ),
            json.dumps({"format": "protobuf", "message": "a.B", "descriptor": "CgA="}),
            json.dumps(
                {
                    "format": "debezium",
                    "values": {"format": "avro"},
                    "keys": {"format": "json", "fields": [["id", "int64"]]},
                }
            ),
        ),
    ),
    "text: topics": (_window, ("orders", "^orders-.*\n^orders-test", "^(a|b)[0-9]{2,3}$\nx")),
    "window": (_stored_window, (json.dumps(WINDOW.to_json()),)),
    "positions of a reader": (
        _positions,
        (
            '[[["orders", 0], 5], [["orders", 1], "2026-11-20T12:00:00Z"], [["orders", 2], "-PT1H"]]',
        ),
    ),
    "text: client properties": (
        _settings,
        (
            "bootstrap.servers=a:9092,b:9092\nsasl.password = s\\u00e9cret\\\n  more\n# x\nclient.id: c\n",
            "bootstrap.servers = [::1]:9092\nschema.registry.url=https://user:secret@r/\nsasl.token.provider=aws-msk-iam\nsasl.mechanism=OAUTHBEARER\nsasl.token.region=eu-west-1\nsecurity.protocol=SASL_SSL",
        ),
    ),
    "text: client settings": (
        _pairs,
        ("bootstrap.servers=a:9092\nreader=native\nsocket.timeout.ms=9000\ngroup.id=x",),
    ),
    "text: URL of a relay": (
        _relay_url,
        ("https://relay:8443", "http://localhost:8080/", "http://[::1]:80", "https://relay/a%20b"),
    ),
    "text: address of an output": (
        _address,
        (
            *("/lake/orders", "s3://bucket/orders", "abfss://c@a.dfs.core.windows.net/o"),
            *("hdfs://nn:8020/lake", "gs://bucket/a/b"),
        ),
    ),
    "text: brokers": (_brokers, ("a:9092,b:9092", "SASL_SSL://host", "[2001:db8::1]:9092", "x")),
}


def _text(name: str) -> Border:
    read, valid = _READS[name]
    errors = (KafkaOrderedOpsError, JsonError)
    return Border([text.encode() for text in valid], lambda data: read(Text(data).decode()), errors)


BORDERS: Final[dict[str, Callable[[], Border]]] = {name: partial(_text, name) for name in _READS}
