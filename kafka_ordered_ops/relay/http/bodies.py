"""The bodies of requests and answers, as JSON and as Arrow.

Models validate requests, and describe the answers in the OpenAPI document. Answers with records are written without
models, which take ten times as long for each record.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.relay.log_records import TEXT_CHARACTERS_MAX
from kafka_ordered_ops.core.types import INT64_MAX
from kafka_ordered_ops.relay.limits import (
    LEASE_S_LEAST,
    LEASES_MAX,
    RANGES_MAX,
    RECORDS_MAX,
    TIME_S_MAX,
    WAIT_S_MAX,
)
from kafka_ordered_ops.relay.ports import Delivered, LeasedOffsets

JSON_TYPE: Final = "application/json"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"

#: Kafka's own limit.
_TOPIC_LENGTH_MAX: Final = 249
#: The number of topics in one read.
_TOPICS_MAX: Final = 1_000
#: The limit of the relay's own tokens, which contain the offsets.
_TOKEN_LENGTH_MAX: Final = 8_192

#: `RECORD_SCHEMA`, and the lease of each record; the stream's metadata has ``done``.
LEASED_SCHEMA: Final = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field("lease", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("lease_until", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
    ]
)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("use printable characters")
    return text


def _rising(offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if any(start >= end for start, end in offsets):
        raise ValueError("a range is [start, end), with start below end")
    return offsets


_Group = Annotated[
    str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX), AfterValidator(_printable)
]
_Token = Annotated[str, Field(min_length=1, max_length=_TOKEN_LENGTH_MAX)]
_Topic = Annotated[str, Field(min_length=1, max_length=_TOPIC_LENGTH_MAX)]
_Offset = Annotated[int, Field(ge=0, le=INT64_MAX)]
_Seconds = Annotated[float, Field(ge=LEASE_S_LEAST, le=TIME_S_MAX)]


class _Body(BaseModel):
    # A misspelt field must not silently become a default, nor a text or a boolean a number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ReadBody(_Body):
    """A request for records."""

    group: _Group = Field(description="The client group: each group gets every record.")
    records_max: int = Field(
        default=500, ge=1, le=RECORDS_MAX, description="The largest number of records to return."
    )
    wait_s: float = Field(
        default=0.0,
        ge=0.0,
        le=WAIT_S_MAX,
        description="How long to wait for the first record. 0 returns only available records.",
    )
    lease_s: _Seconds = Field(default=60.0, description="How long this client holds the records.")
    topics: list[_Topic] | None = Field(
        default=None,
        min_length=1,
        max_length=_TOPICS_MAX,
        description="Return only records of these topics. Default: all topics of the server.",
    )


class LeaseBody(_Body):
    """One lease, or some of its offsets."""

    lease: _Token
    offsets: (
        Annotated[
            list[tuple[_Offset, _Offset]],
            Field(min_length=1, max_length=RANGES_MAX),
            AfterValidator(_rising),
        ]
        | None
    ) = Field(default=None, description="Ranges [start, end). Default: the whole lease.")


class LeasesBody(_Body):
    """Leases to acknowledge or to cancel."""

    leases: list[LeaseBody] = Field(min_length=1, max_length=LEASES_MAX)

    def offsets(self) -> list[LeasedOffsets]:
        """Return the leases as the service expects them."""
        return [
            (lease.lease, None if lease.offsets is None else OffsetSet.from_ranges(lease.offsets))
            for lease in self.leases
        ]


class ExtendBody(_Body):
    """Leases to extend."""

    leases: list[_Token] = Field(min_length=1, max_length=LEASES_MAX)
    lease_s: _Seconds = Field(default=60.0, description="How long the leases last from now.")


class WindowBody(_Body):
    """A window to hand out."""

    plan: dict[str, Any] = Field(description="A plan, as `WindowPlan.to_json` returns it.")
    group: _Group | None = Field(
        default=None, description="The name of its group. Default: the id of the window."
    )


class RecordAnswer(BaseModel):
    """A record."""

    offset: int
    timestamp_ms: int
    key: str | None = Field(description="Base64.")
    value: str | None = Field(description="Base64. Null for a tombstone.")
    headers: list[tuple[str, str | None]] = Field(description="Names, and values in base64.")


class LeaseAnswer(BaseModel):
    """Records of one partition, leased together."""

    lease: str = Field(description="The token that acknowledges, cancels or extends the lease.")
    topic: str
    partition: int
    until_ms: int = Field(description="When the lease ends, in milliseconds since the epoch.")
    attempt: int = Field(description="1 if the records are handed out for the first time.")
    records: list[RecordAnswer]


class ReadAnswer(BaseModel):
    """Records, if there are any."""

    leases: list[LeaseAnswer]
    done: bool = Field(description="Whether every record of the window is acknowledged.")


class DoneAnswer(BaseModel):
    """The change is stored."""


class ExtendAnswer(BaseModel):
    """The leases are extended."""

    until_ms: list[int] = Field(description="When each lease ends, in the order of the request.")


class WindowAnswer(BaseModel):
    """The window can be read."""

    group: str


class PartitionAnswer(BaseModel):
    """One group in one partition, as this server knows it."""

    topic: str
    partition: int
    group: str | None
    owner: str | None
    is_mine: bool
    is_replayed: bool
    waiting: int | None = Field(
        description="Offsets that are neither acknowledged nor leased; null if the end is not known yet."
    )
    pending: int
    acknowledged: int
    base: int | None
    oldest_lease_ms: int | None
    refused_dead_letters: int
    problem: str | None
    replayed: int
    replayed_of: int | None


class StatusAnswer(BaseModel):
    """The status of this server."""

    ready: bool
    now_ms: int
    partitions: list[PartitionAnswer]


class ReadyAnswer(BaseModel):
    """Whether reads are served, and how many records of the logs have been read so far."""

    ready: bool
    replayed: int
    replayed_of: int | None = Field(description="Null if not known yet.")


class ErrorFacts(BaseModel):
    """An error."""

    type: str
    message: str
    retriable: bool = Field(description="Whether the same request may succeed later.")


class ErrorAnswer(BaseModel):
    """The answer for every status of 400 or more."""

    error: ErrorFacts


def read_json(delivered: Sequence[Delivered], *, done: bool) -> bytes:
    """Return the answer to a read as JSON."""
    leases = ",".join([_lease_json(delivery) for delivery in delivered])
    return f'{{"leases":[{leases}],"done":{"true" if done else "false"}}}'.encode()


def _lease_json(delivery: Delivered) -> str:
    records = ",".join([_record_json(record) for record in delivery.records])
    attempt = delivery.records[0].attempt
    # Kafka's topic names and the relay's tokens have no characters that JSON must escape.
    return (
        f'{{"lease":"{delivery.lease}","topic":"{delivery.tp.topic}","partition":{delivery.tp.partition},'
        f'"until_ms":{delivery.until_ms},"attempt":{attempt},"records":[{records}]}}'
    )


def _record_json(record: Record) -> str:
    headers = (
        ",".join([f"[{json.dumps(name)},{_base64(value)}]" for name, value in record.headers])
        if record.headers
        else ""
    )
    return (
        f'{{"offset":{record.offset},"timestamp_ms":{record.timestamp_ms},"key":{_base64(record.key)},'
        f'"value":{_base64(record.value)},"headers":[{headers}]}}'
    )


def _base64(value: bytes | None) -> str:
    return "null" if value is None else f'"{b64encode(value).decode()}"'


def read_arrow(delivered: Sequence[Delivered], *, done: bool) -> bytes:
    """Return the answer to a read as an Arrow stream of `LEASED_SCHEMA`."""
    schema = LEASED_SCHEMA.with_metadata({"done": "true" if done else "false"})
    records = [record for delivery in delivered for record in delivery.records]
    sizes = [len(delivery.records) for delivery in delivered]
    headers = [
        [{"key": name, "value": value} for name, value in record.headers] or None
        for record in records
    ]
    columns: dict[str, Any] = {
        "topic": [record.topic for record in records],
        "partition": [record.partition for record in records],
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp_ms for record in records],
        "timestamp_type": [None] * len(records),
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": headers,
        "lease_until": _repeated([delivery.until_ms for delivery in delivered], sizes),
        "attempt": [record.attempt for record in records],
    }
    arrays: dict[str, Any] = {
        name: pa.array(values, schema.field(name).type) for name, values in columns.items()
    }
    arrays["lease"] = pa.DictionaryArray.from_arrays(
        pa.array(_repeated(list(range(len(delivered))), sizes), pa.int32()),
        pa.array([delivery.lease for delivery in delivered], pa.string()),
    )
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _repeated(values: Sequence[int], counts: Sequence[int]) -> list[int]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def body_error(error: ValueError) -> ConfigError:
    """Return the error of an invalid request without its values, which may be secret."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return ConfigError(f"the request is invalid: {error}")
    first = errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the body"
    return ConfigError(f"the request is invalid: {where}: {first['msg']}")
