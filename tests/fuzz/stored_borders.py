"""What is stored where other programs write too: commit metadata, the ledger, files beside outputs, relay logs, offset syncs."""

from __future__ import annotations

import base64
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

from kafka_ordered_ops import (
    KafkaOrderedOpsError,
    LedgerCorruptError,
    LedgerVersionError,
    OutputOwnedError,
    StagedOutput,
    WindowPlan,
)
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.decisions.failing_over import translated
from kafka_ordered_ops.core.group.ledger.messages import parse_key
from kafka_ordered_ops.core.group.ledger.records import LedgerFold, LedgerMessage
from kafka_ordered_ops.core.offset_map.ours import PREFIX, decode_offset_map
from kafka_ordered_ops.core.offset_map.packing import deflate
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_map.reading import (
    DecodePolicy,
    MetadataKind,
    read_committed_progress,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import JsonError, loads
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.facts.mirror_syncs import read_syncs
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.testing import InMemoryKafka
from tests.fuzz.borders import Border, Text
from tests.support.stored_formats import Format, formats, stored
from tests.support.stored_readers import unmade
from tests.support.stored_values import CHANGE, GROUP, MAP, PLACE, PLAN

_ERRORS: Final = (KafkaOrderedOpsError, JsonError)
_BASE: Final = MAP.base
_VECTORS: Final = Path(__file__).parents[1] / "core" / "parallel_consumer_vectors.json"
#: Longer metadata is not stored by a broker.
_VECTOR_LENGTH_MAX: Final = 4_096


# --- formats with samples ------------------------------------------------------------------------


def _format(name: str) -> Border:
    """Return the border of a stored format, and of its variants: `name` alone, and before a colon."""
    samples = stored()
    mine: dict[str, Format] = {}
    for one, known in formats():
        if one == name or one.startswith((f"{name}:", f"{name},")):
            mine[one] = known
        elif mine:
            # The libraries of later ones are not needed.
            break
    read = _READERS.get(name) or next(iter(mine.values())).read
    return Border([samples[one] for one in mine], lambda data: read(Text(data)), _ERRORS)


def _result(read: Callable[[Any], object], data: bytes) -> None:
    """The ledger's parser lets only objects pass."""
    value = loads(data, limit_bytes=10**6)
    if isinstance(value, dict):
        read(value)


def _plan(data: bytes) -> None:
    plan = WindowPlan.from_text(data.decode())
    assert WindowPlan.from_text(plan.to_text()) == plan


def _planned(data: bytes) -> None:
    from kafka_ordered_ops.airflow.operators.follower import WindowFollower, as_planned

    facts = WindowFollower.planned_facts(unmade(WindowFollower, window=data.decode()))
    as_planned(replace(PLAN, claim_id="", attempt=0), facts)


def _in_file(read: Callable[[Path], object], data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        read(Path(file.name))


def _tokens(data: bytes) -> None:
    from kafka_ordered_ops.relay.http.access import read_entries

    _in_file(read_entries, data)


def _topics(data: bytes) -> None:
    from kafka_ordered_ops.dagster.components.topics_component import _read

    _in_file(_read, data)


#: In place of readers that compare with the one value that they expect.
_READERS: Final[dict[str, Callable[[bytes], object]]] = {
    "result: folder": partial(_result, StagedOutput.found),
    "result: table": partial(_result, KeptOutput.from_json),
    "result: reported": partial(_result, Reported.found),
    "plan": _plan,
    "Airflow: planned window": _planned,
    "relay access token": _tokens,
    "Dagster: matching topics": _topics,
}
_FORMATS: Final = (
    *("ledger: koo-summary", "plan", "result: folder", "result: table", "result: reported"),
    *("marker", "marker of a draft", "manifest", "seal", "root owner"),
    *("table commit: Delta", "name: publication in Iceberg"),
    *("relay log", "relay secret", "relay lease token", "relay access token"),
    *("Dagster: sensor's cursor", "Dagster: matching topics"),
    *("Airflow: sensor's question", "Airflow: planned window"),
)


def _iceberg() -> Border:
    """What a snapshot of Iceberg has: this package's facts, the id of a publication, and Iceberg's own count of rows."""
    from kafka_ordered_ops.spark.write.table_iceberg import _commit_of

    commit, published = (
        stored()[name].decode()
        for name in ("table commit: Iceberg", "name: publication in Iceberg")
    )

    def read(data: bytes) -> None:
        kind, _, text = Text(data).decode().partition("\n")
        _commit_of(
            "lake.orders",
            text if kind == "facts" else None,
            published if kind == "rows" else text,
            text if kind == "rows" else "7",
        )

    valid = (f"facts\n{commit}", f"published\n{published}", "rows\n1107")
    return Border([text.encode() for text in valid], read, _ERRORS)


# --- commit metadata -----------------------------------------------------------------------------


def _metadata_read(metadata: bytes) -> None:
    try:
        ours = decode_offset_map(metadata)
    except KafkaOrderedOpsError:
        ours = None
    offset = _BASE if ours is None else ours.base
    progress = read_committed_progress(
        offset, metadata, end=None, policy=DecodePolicy.FAIL, where="group g, orders[0]"
    )
    assert progress.problem is None
    if progress.kind is MetadataKind.PARALLEL_CONSUMER and progress.done:
        again = encode_parallel_consumer_map(offset, progress.done, limit_bytes=1 << 30)
        back = read_committed_progress(offset, again, end=None, policy=DecodePolicy.FAIL, where="g")
        assert back.done == progress.done


def _ours() -> Border:
    valid = [data for name, data in stored().items() if name.startswith("offset map")]
    return Border(valid, _metadata_read)


def _framed(body: bytes) -> bytes:
    """Return a body of this package's format with its checksum."""
    checked = body + struct.pack(">I", zlib.crc32(body))
    return PREFIX + base64.b64encode(checked) + b"."


def _behind_checksum() -> Border:
    texts = [data[len(PREFIX) : -1] for data in _ours().valid]
    return Border(
        [base64.b64decode(text)[:-4] for text in texts], lambda body: _metadata_read(_framed(body))
    )


def _parallel_consumer_maps() -> list[bytes]:
    vectors = json.loads(_VECTORS.read_text())["encode"]
    texts = [
        known["b64"]
        for vector in vectors
        for known in vector["metadata"].values()
        if "b64" in known
    ]
    return [text.encode() for text in texts if len(text) <= _VECTOR_LENGTH_MAX][::3]


def _parallel_consumer() -> Border:
    return Border(_parallel_consumer_maps(), _metadata_read)


def _behind_base64() -> Border:
    def read(body: bytes) -> None:
        # The same, if it were compressed.
        with suppress(KafkaOrderedOpsError):
            _metadata_read(base64.b64encode(b"s" + deflate(body[1:])))
        _metadata_read(base64.b64encode(body))

    bodies = [base64.b64decode(text) for text in _parallel_consumer_maps()]
    return Border([body for body in bodies if len(body) < 1_000], read, cost=10)


# --- the ledger ----------------------------------------------------------------------------------

_MESSAGES: Final[list[LedgerMessage]] = list(LedgerFold(PLACE, GROUP).messages(CHANGE))


def _fold_of(messages: Iterable[tuple[bytes | None, Any, Any]]) -> LedgerFold:
    fold = LedgerFold(PLACE, GROUP)
    for offset, (key, value, headers) in enumerate(messages):
        fold.take(offset, key, value, lambda headers=headers: headers)  # type: ignore[misc]
    fold.has_read_all()
    return fold


def _group_read(messages: list[Any]) -> None:
    """Read a group's ledger; what is written next can be read, whatever was there."""
    fold = _fold_of(messages)
    try:
        view = fold.view(everything=True, processed=[PLAN.window_id])
        fold.summaries()
        view.known_claims()
    except (LedgerCorruptError, LedgerVersionError):
        pass
    written = list(fold.messages(CHANGE))
    assert all(parse_key(key) is not None for key, _, _ in written)
    view = _fold_of([*messages, *written]).view(
        [record.plan.window_id for record in CHANGE.records], processed=[PLAN.window_id]
    )
    assert view.state == CHANGE.state
    assert not view.unreadable


def _ledger_values() -> Border:
    """A byte that chooses one of a group's records, and what stands in its place."""
    bodies = [bytes(value or b"") for _, value, _ in _MESSAGES]

    def read(data: bytes) -> None:
        number = data[0] % len(_MESSAGES) if data else 0
        key, _, headers = _MESSAGES[number]
        messages: list[Any] = [*_MESSAGES]
        messages[number] = key, data[1:], headers
        _group_read(messages)

    valid = [bytes([number]) + body for number, body in enumerate(bodies)]
    return Border(valid, read, cost=50)


def _ledger_keys() -> Border:
    """A key, and a header after a NUL, of one more record."""
    header = b"\0koo-generation\x0041"
    _, value, headers = _MESSAGES[0]

    def read(data: bytes) -> None:
        key, _, text = data.partition(b"\0")
        name, _, content = Text(text).decode().partition("\0")
        more: dict[str, Any] = {**headers, name: content}
        _group_read([*_MESSAGES, (key, value, more)])
        _group_read([*_MESSAGES, (key, value, {name: content.encode("utf-8", "replace")})])

    return Border([bytes(key) + header for key, _, _ in _MESSAGES], read, cost=100)


# --- files between a submitter and its job -------------------------------------------------------


def _submitted() -> Border:
    """A line with the name of a file, and its content."""
    from kafka_ordered_ops.spark.applications.protocol import (
        Order,
        Submission,
        settings_from_text,
    )
    from kafka_ordered_ops.spark.applications.result import JobError, JobProgress, JobResult

    def report(folder: PurePath) -> None:
        if (error := JobError.read(folder)) is not None:
            error.as_named("See the log")

    reads: dict[str, Callable[[PurePath], object]] = {
        "submission.json": Submission.read,
        "plan-00000.json": Submission.read,
        "result.json": lambda folder: JobResult.read(folder, "token", [PLAN]),
        "progress.json": JobProgress.read,
        "error.json": report,
    }
    folder = PurePath(tempfile.mkdtemp())
    Submission("token", (PLAN,), "/lake", "python", True, None, Order.WRITE, (), None).write(folder)
    JobResult(({"records": 1},), None).write(folder, "token", [PLAN])
    JobProgress(1, 2, 3, None).write(folder)
    JobError.of(OutputOwnedError("no", group_id="g")).write(folder)
    contents = {name: Path(folder, name).read_bytes() for name in reads}

    def read(data: bytes) -> None:
        name, _, content = Text(data).partition(b"\n")
        known = name.decode("ascii", "replace")
        if known not in reads:
            settings_from_text(base64.b64encode(content).decode())
            return
        Path(folder, known).write_bytes(content)
        try:
            reads[known](folder)
        finally:
            Path(folder, known).write_bytes(contents[known])

    settings: dict[str, Any] = {
        "values": {"bootstrap.servers": "a:9092"},
        "extra_allowed": ["debug"],
        "overridden": ["group.id"],
        "storage_options": None,
    }
    valid = [name.encode() + b"\n" + content for name, content in contents.items()]
    return Border([*valid, b"settings\n" + json.dumps(settings).encode()], read, _ERRORS, cost=5)


# --- a mirror's offset syncs ---------------------------------------------------------------------


def _syncs() -> Border:
    """A record of the topic of offset syncs: its key, and the last sixteen bytes as its value."""
    topic, orders = "mm2-offset-syncs.b.internal", TopicPartition("orders", 0)
    offset_map = replace(MAP, base=1_000, beyond=OffsetSet.of((1_100, 1_200)))
    commit = CommittedOffset(900)

    def read(data: bytes) -> None:
        with InMemoryKafka() as kafka:
            kafka.create_topic(topic)
            kafka.produce(topic, key=data[:-16], value=data[-16:], timestamp_ms=1)
            settings = ClientSettings.of(kafka.settings)
            with open_lookup(settings) as lookup:
                syncs = read_syncs(settings, GROUP, lookup, topic, [orders])
        translated(orders, commit, offset_map, syncs.get(orders, ()), end=2_000)

    key = struct.pack(">H6si", 6, b"orders", 0)
    pairs = ((1_000, 900), (1_150, 1_050), (0, 0))
    return Border([key + struct.pack(">qq", *pair) for pair in pairs], read, cost=20)


BORDERS: Final[dict[str, Callable[[], Border]]] = {
    "offset map": _ours,
    "offset map, behind its checksum": _behind_checksum,
    "offset map of Parallel Consumer": _parallel_consumer,
    "offset map of Parallel Consumer, behind its base64": _behind_base64,
    "ledger": _ledger_values,
    "ledger: keys and headers": _ledger_keys,
    "table commit: Iceberg": _iceberg,
    "files of a submission": _submitted,
    "offset syncs of a mirror": _syncs,
    **{name: partial(_format, name) for name in _FORMATS},
}
