"""Every stored format with a realistic value, its writer and its reader; see `tests/delivery/test_stored_formats.py`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops import (
    ConfigError,
    LeaseError,
    LedgerVersionError,
    OffsetMapDecodeError,
    OutputVersionError,
    RelayLogVersionError,
    StagedOutput,
    WindowPlan,
)
from kafka_ordered_ops.core.group.ledger_rules import transactional_id
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map, encode_offset_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay import log_records as relay
from kafka_ordered_ops.core.strict_json import JsonVersionError
from kafka_ordered_ops.core.window.window_id import default_window_id, readable_window_id
from kafka_ordered_ops.output.contents import Holding
from kafka_ordered_ops.output.layout import tag_beginning
from kafka_ordered_ops.output.objects.layout import Manifest, Seal
from kafka_ordered_ops.output.roots.leftovers import StageOrigin, origin_in
from kafka_ordered_ops.output.roots.ownership import under_way
from kafka_ordered_ops.output.roots.root_owner import RootOwner
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.relay.log import secret_of, secret_value
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_stages import publication_id, publication_of
from kafka_ordered_ops.spark.write.table_write import TableCommit
from kafka_ordered_ops.spec.table import TableLocation, TableMode
from tests.support.stored_readers import (
    access_token,
    as_text,
    cursor,
    delta_metadata,
    first_byte,
    from_access,
    from_cursor,
    from_delta,
    from_ledger,
    from_planned,
    from_question,
    from_topics_state,
    iceberg_commit,
    ledger_messages,
    newer_record,
    newer_summary,
    newer_token,
    output_from,
    parsed,
    planned,
    question,
    raised,
    summary_text,
    topics_state,
)
from tests.support.stored_values import (
    CHANGE,
    FILES,
    FOLDER,
    GROUP,
    KEPT,
    LEASE,
    LEASED,
    LEDGER,
    MANY,
    MANY_RANGES,
    MAP,
    NOON_MS,
    PLAN,
    RELAY_RECORDS,
    REPORTED,
    SIGNER,
    WINDOW,
    WRITE,
)

#: By name: the stored text, or base64 of bytes that are no text.
SAMPLES: Final = Path(__file__).parents[1] / "samples" / "formats.json"


@dataclass(frozen=True)
class Format:
    """One stored format."""

    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    #: The same with its version raised by one, or that of a format inside. Empty: it never changes.
    newer: tuple[Callable[[bytes], bytes], ...]
    #: What reading that raises; None: it gives `of_newer`.
    error: type[Exception] | None
    of_newer: Any = None
    #: Whether a writer gives the same bytes everywhere: those of compressors differ between their releases.
    is_exact: bool = True


#: Names and digests that identify something stored: with others, it is not found again.
NAMES: Final[Mapping[str, Callable[[], str]]] = {
    "transactional id of a group": lambda: transactional_id(LEDGER.partition("/")[0], GROUP),
    "default window id": lambda: default_window_id(GROUP, WINDOW),
    "window id of a host": lambda: readable_window_id("dag", "run", distinct=["dag", "run", 1]),
    "digest of a request": lambda: WINDOW.question_digest,
    "beginning of a folder's tag": lambda: tag_beginning(PLAN.window_id),
    "window in a table's stage": lambda: WRITE.window_key,
    "write in a table's stage": lambda: WRITE.name,
    "digest of files": lambda: Holding.of(FILES).digest,
    "digest of a relay group's offsets": lambda: relay.digest_of(LEASED.offsets),
}


def formats() -> Iterator[tuple[str, Format]]:
    """Yield every format by its name, as `docs/ledger.md` has them."""
    kinds = ("state", "window", "processed", "forgotten", "times")
    newer = (*map(newer_record, kinds), newer_record("window", "plan"))
    yield "ledger", Format(CHANGE, ledger_messages, from_ledger, newer, LedgerVersionError)
    summary = WindowSummary.of(CHANGE.records[2])
    yield (
        "ledger: koo-summary",
        Format(
            summary,
            summary_text,
            lambda one: WindowSummary.from_text("split", one),
            (newer_summary,),
            None,
        ),
    )
    for name, plan, is_exact in (("plan", PLAN, True), ("plan: part", MANY_RANGES, False)):
        yield (
            name,
            Format(
                plan,
                lambda one: one.to_text().encode(),
                lambda one: WindowPlan.from_text(one.decode()),
                (raised(),),
                ConfigError,
                is_exact=is_exact,
            ),
        )
    many = OffsetSet.from_ranges([(200 + 9 * n, 205 + 9 * n) for n in range(300)])
    for name, offset_map, is_exact in (
        ("runs", MAP, True),
        ("runs, after windows", replace(MAP, delivered_before_ms=NOON_MS), True),
        ("nothing", replace(MAP, beyond=OffsetSet.of()), True),
        ("in ledger", replace(MAP, beyond=None), True),
        ("compressed", replace(MAP, beyond=many), False),
    ):
        yield (
            f"offset map: {name}",
            Format(
                offset_map,
                encode_offset_map,
                decode_offset_map,
                (lambda one: one.replace(b"~koo1:", b"~koo2:"),),
                OffsetMapDecodeError,
                is_exact=is_exact,
            ),
        )
    yield from _results()
    yield from _beside_outputs()
    yield from _in_tables()
    yield from _of_relay()
    yield from _of_hosts()
    for name, make in NAMES.items():
        yield (
            f"name: {name}",
            Format(make(), str.encode, bytes.decode, (), None),
        )


def _results() -> Iterator[tuple[str, Format]]:
    yield (
        "result: folder",
        Format(
            FOLDER, lambda one: as_text(one.to_json()), output_from, (raised(),), OutputVersionError
        ),
    )
    yield (
        "result: table",
        Format(
            KEPT,
            lambda one: as_text(one.to_json()),
            lambda one: KeptOutput.from_json(parsed(one)),
            (raised(),),
            OutputVersionError,
        ),
    )
    located = replace(KEPT, location=TableLocation("s3://lake/orders", "https://c", "l.orders"))
    yield (
        "result: table with its location",
        Format(
            located,
            lambda one: as_text(one.to_json()),
            lambda one: KeptOutput.from_json(parsed(one)),
            (raised(),),
            OutputVersionError,
        ),
    )
    yield (
        "result: reported",
        Format(
            REPORTED,
            lambda one: as_text(one.to_json()),
            lambda one: Reported.found(parsed(one)),
            (raised(),),
            OutputVersionError,
        ),
    )


def _beside_outputs() -> Iterator[tuple[str, Format]]:
    yield (
        "marker",
        Format(
            FOLDER,
            StagedOutput.marker,
            lambda one: StagedOutput.parsed(one, FOLDER.root, "_window.json"),
            (raised(),),
            OutputVersionError,
        ),
    )
    origin = StageOrigin(LEDGER, GROUP, PLAN.window_id)
    yield (
        "marker of a draft",
        Format(
            origin,
            lambda _: under_way(FOLDER),
            lambda content: origin_in([content], limit_bytes=10**6),
            (raised(),),
            None,
            origin,
        ),
    )
    manifest = Manifest(3, FOLDER, FILES, "publisher-1", ("window_id=x/y.parquet",))
    yield (
        "manifest",
        Format(
            manifest,
            Manifest.to_bytes,
            lambda one: Manifest.parse(one, FOLDER, "manifest.json"),
            (raised(), raised("output")),
            OutputVersionError,
        ),
    )
    yield (
        "seal",
        Format(
            Seal(FOLDER, FILES),
            Seal.to_bytes,
            lambda one: Seal.parse(one, FOLDER, "seal.json"),
            (raised(), raised("output")),
            OutputVersionError,
        ),
    )
    yield (
        "root owner",
        Format(
            RootOwner(LEDGER, {GROUP: ("orders", "rates.eur"), "other": ()}),
            RootOwner.to_bytes,
            lambda one: RootOwner.parse(one, "/lake/.koo/orders/owner.json"),
            (raised(),),
            OutputVersionError,
        ),
    )


def _in_tables() -> Iterator[tuple[str, Format]]:
    commit = TableCommit(WRITE, TableMode.REPLACE, 1_107)
    yield (
        "table commit: Iceberg",
        Format(
            commit,
            lambda one: as_text(one.to_json()),
            iceberg_commit,
            (raised(),),
            OutputVersionError,
        ),
    )
    yield (
        "table commit: Delta",
        Format(
            (commit, 5),
            delta_metadata,
            from_delta,
            (raised("kafka_ordered_ops"),),
            OutputVersionError,
        ),
    )
    yield (
        "name: publication in Iceberg",
        Format(
            replace(WRITE, attempt=0, token="0"),
            lambda one: publication_id(one).encode(),
            lambda one: publication_of(one.decode()),
            (),
            None,
        ),
    )


def _of_relay() -> Iterator[tuple[str, Format]]:
    records: dict[str, tuple[relay.LogRecord, bool]] = {
        name: (record, True) for name, record in RELAY_RECORDS.items()
    }
    records["acknowledged, many"] = relay.Acknowledged(GROUP, MANY), False
    records["snapshot"] = relay.Snapshot(77, 1, 2, tuple(enumerate(RELAY_RECORDS.values()))), True
    for name, (record, is_exact) in records.items():
        yield (
            f"relay log: {name}",
            Format(
                record,
                relay.encode,
                relay.decode,
                (first_byte,),
                RelayLogVersionError,
                is_exact=is_exact,
            ),
        )
    yield (
        "relay secret",
        Format(bytes(range(32)), secret_value, secret_of, (first_byte,), RelayLogVersionError),
    )
    yield (
        "relay lease token",
        Format(
            LEASE,
            lambda one: SIGNER.token_of(one).encode(),
            lambda one: SIGNER.lease_of(one.decode()),
            (newer_token,),
            LeaseError,
        ),
    )
    yield (
        "relay access token",
        Format(
            access_token(),
            lambda one: one.to_json().encode(),
            from_access,
            (raised(),),
            ConfigError,
        ),
    )


def _of_hosts() -> Iterator[tuple[str, Format]]:
    yield (
        "Dagster: sensor's cursor",
        Format(
            cursor(),
            lambda one: one.to_text().encode(),
            from_cursor,
            (raised(),),
            JsonVersionError,
        ),
    )
    yield (
        "Dagster: matching topics",
        Format(["orders", "orders.eu"], topics_state, from_topics_state, (raised(),), ConfigError),
    )
    yield (
        "Airflow: sensor's question",
        Format(
            question(),
            lambda one: as_text(one.to_json()),
            from_question,
            (raised(),),
            ConfigError,
        ),
    )
    yield (
        "Airflow: planned window",
        Format(PLAN, planned, from_planned, (raised(),), ConfigError),
    )


# --- samples ------------------------------------------------------------------------------------------


def stored() -> dict[str, bytes]:
    """Return the samples."""
    if not SAMPLES.exists():
        return {}
    return {
        name: base64.b64decode(one["base64"]) if "base64" in one else one["text"].encode()
        for name, one in json.loads(SAMPLES.read_text(encoding="utf-8")).items()
    }


def _as_sample(content: bytes) -> dict[str, str]:
    try:
        text = content.decode()
        return (
            {"text": text} if text.isprintable() else {"base64": base64.b64encode(content).decode()}
        )
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def add_missing() -> list[str]:
    """Add a sample of each format that has none; return their names. Existing ones stay: they are what users have."""
    known = stored()
    added = {name: one.write(one.value) for name, one in formats() if name not in known}
    every = {name: _as_sample(content) for name, content in sorted({**known, **added}.items())}
    text = json.dumps(every, indent=1, ensure_ascii=False)
    SAMPLES.write_text(f"{text}\n", encoding="utf-8")
    return list(added)


if __name__ == "__main__":
    print("\n".join(add_missing()) or "every format has its sample")
