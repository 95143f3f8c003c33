"""Realistic values of what is stored; see `tests.support.stored_formats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from kafka_ordered_ops import StagedOutput, Table, Window, WindowPlan
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Forgotten,
    GroupDefinition,
    GroupState,
    PartitionState,
    PartReports,
    Pruned,
    TopicState,
    WindowRecord,
)
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.offset_map.ours import OffsetMap
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.relay import log_records as relay
from kafka_ordered_ops.core.time_ranges import LateSteps, TimeRange
from kafka_ordered_ops.core.types import (
    Isolation,
    Mode,
    PlanContent,
    ProgressFormat,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.plan import HeldElsewhere, PartitionPlan, PlanPart
from kafka_ordered_ops.output.contents import Holding
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.relay.tokens import Lease, TokenSigner
from kafka_ordered_ops.spark.write.table_evolution import Addition
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_write import TableWrite

GROUP: Final = "orders-hourly"
LEDGER: Final = "9UYnXVcZTF2Uxr8yGnnOzg/kY2lhc1vQ9iVFk2f3lHq7g"
TOPIC_ID: Final = "J1mF6b9ITfC0oBqpyqI0Xg"
CLAIM: Final = "5f0c8a1e2b3d4c6f"
NOON_MS: Final = 1_795_176_000_000
HOUR_MS: Final = 3_600_000
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PLACE: Final = TopicPartition("__kafka_ordered_ops", 17)

WINDOW = Window(
    ["orders", r"^rates\..*"],
    cutoff="2026-11-20T12:00:00Z",
    since="2026-11-20T11:00:00Z",
    starting_offsets={"orders": "earliest", r"^rates\..*": "-PT1H"},
    max_out_of_orderness="PT5M",
    isolation="read_uncommitted",
    exclude=["rates.test"],
    on_data_loss="warn",
    allow_future_cutoff=True,
)
LATE = LateSteps().with_steps(
    [
        (900, TimeRange(NOON_MS - 2 * HOUR_MS, NOON_MS - HOUR_MS)),
        (1_250, TimeRange(NOON_MS - HOUR_MS, NOON_MS)),
    ]
)
PLAN = WindowPlan(
    group_id=GROUP,
    window_id="2026-11-20T11",
    window=WINDOW,
    claim_id=CLAIM,
    attempt=2,
    status=WindowStatus.PLANNED,
    content=PlanContent.RECORDS,
    planned_at_ms=NOON_MS + 1_500,
    partitions=(
        PartitionPlan(
            ORDERS_0,
            TOPIC_ID,
            taken=OffsetSet.of((100, 1_200), (1_204, 1_210), (1_300, 1_301)),
            lost=OffsetSet.of((90, 100)),
            decided_end=1_310,
            head_end=1_205,
            late=LATE,
            leader_epoch=7,
            lost_untimed=OffsetSet.of((90, 95)),
            earlier=OffsetSet.of((100, 140), (200, 201)),
        ),
        PartitionPlan(
            ORDERS_1,
            TOPIC_ID,
            taken=OffsetSet.of((2**53, 2**53 + 10)),
            lost=OffsetSet.of(),
            decided_end=2**53 + 10,
            head_end=None,
            late=LateSteps(),
        ),
    ),
    stepped_around=("2026-11-20T10", "noon"),
    held_by_open=(
        HeldElsewhere("2026-11-20T10", 55, WindowStatus.WRITTEN, NOON_MS - HOUR_MS + 9_000),
    ),
    notes=("10 offsets of orders[0] are lost", "prüfen: “ß”"),
    scanned=1_234,
    ledger_id=LEDGER,
    replaces=("0a1b2c3d4e5f6071",),
    allow_fewer=True,
    adopts_commits=True,
)
MANY_RANGES = replace(
    PLAN,
    part=PlanPart(3, 8),
    partitions=(
        replace(
            PLAN.partitions[0],
            taken=OffsetSet.from_ranges([(100 + 5 * n, 102 + 5 * n) for n in range(100)]),
        ),
    ),
)
FOLDER = StagedOutput(
    root="/lake/orders",
    window_id=PLAN.window_id,
    claim_id=CLAIM,
    attempt=2,
    facts={"records": 1_107, "late": 3, "files": 2, "elapsed_ms": 4_210, "first_ms": None},
    group_id=GROUP,
    holding=Holding.of({"part-00000.parquet": 52_100, "part-00001.parquet": 480}, 1_107),
    partition="date=2026-11-20/hour=11",
    ledger_id=LEDGER,
    topics=WINDOW.topics,
    replaces=PLAN.replaces,
    allow_fewer=True,
)
FILES: Final = {
    f"window_id=2026-11-20T11/{CLAIM}-2-000003-part-00000.parquet": 52_100,
    f"window_id=2026-11-20T11/{CLAIM}-2-000003-part-00001.parquet": 480,
}
WRITE = TableWrite(LEDGER, GROUP, PLAN.window_id, CLAIM, 2, "0123456789ab")
KEPT = KeptOutput(
    Table(
        "lake.orders",
        "merge",
        ["order_id", "region"],
        delete_tombstones=True,
        schema_evolution="add",
    ),
    "iceberg",
    replace(
        WRITE,
        replaces=PLAN.replaces,
        allow_fewer=True,
        adds=(Addition(("value", "a.b", "element", "c"), "decimal(12,2)"),),
    ),
    {"records": 1_107, "elapsed_ms": 4_210},
    8_123_456_789_012_345_678,
    True,
)
REPORTED = Reported({"facts": {"records": 1_107}, "returned": {"rows": 1_107, "table": "x"}})
STATE = GroupState(
    GROUP,
    sequence=41,
    definition=GroupDefinition(
        Mode.INTERVAL, Isolation.READ_UNCOMMITTED, WINDOW.topics, WINDOW.exclude, "airflow:orders"
    ),
    patterns=(r"^rates\..*",),
    topics={
        "orders": TopicState(
            TOPIC_ID,
            True,
            {
                0: PartitionState(
                    90, OffsetSet.of((0, 100), (1_210, 1_300)), 100, LATE, leader_epoch=7
                ),
                1: PartitionState(0, OffsetSet.of(), None),
            },
        )
    },
    open=(PLAN.window_id, "split"),
    unpublished=("2026-11-20T10",),
    offsets_sequence=40,
    format=ProgressFormat.DUAL,
    columns={"value": [["id", "int64"], ["lines", {"list": {"struct": [["sku", "string"]]}}]]},
)
CHANGE = Change(
    STATE,
    (
        WindowRecord(PLAN, run_id="scheduled__2026-11-20", touched_at_ms=NOON_MS + 9_000),
        WindowRecord(
            replace(PLAN, window_id="2026-11-20T10", status=WindowStatus.COMMITTED),
            FOLDER.to_json(),
            touched_at_ms=NOON_MS + 8_000,
            committed_at_ms=NOON_MS + 8_100,
        ),
        WindowRecord(
            replace(PLAN, window_id="split"),
            parts=PartReports(3, {1: {"version": 1, "reported": {}}}),
            touched_at_ms=NOON_MS,
        ),
        WindowRecord(
            replace(PLAN, window_id="old", status=WindowStatus.PUBLISHED, partitions=()),
            KEPT.to_json(),
            committed_at_ms=NOON_MS,
            pruned=Pruned(1_107, 10),
        ),
    ),
    time_maps={
        ORDERS_0: TimeMap(
            np.array(
                [
                    [1_310, 2_310, NOON_MS - 5, NOON_MS + 60_000],
                    [2_400, 2_500, NOON_MS + 1, NOON_MS + 2],
                ]
            ),
            TOPIC_ID,
        )
    },
    forgotten=("ancient",),
    forgotten_records={"ancient": Forgotten(("c1", "c2"), WINDOW.question_digest)},
    processed={
        PLAN.window_id: ProcessedOffsets(CLAIM, {ORDERS_0: OffsetSet.of((100, 500), (510, 511))})
    },
)
LEASED = relay.Leased(
    GROUP, "00112233445566778899aabbccddeeff", 3, OffsetSet.of((100, 200), (300, 301)), NOON_MS, 2
)
MANY = OffsetSet.from_ranges([(3 * n, 3 * n + 2) for n in range(20)])
RELAY_RECORDS: Final[Mapping[str, relay.StateRecord]] = {
    "owned": relay.Owned(3, "server-1", TOPIC_ID),
    "served": relay.Served("relay"),
    "opened": relay.Opened(GROUP, 100, OffsetSet.of((100, 200), (300, 301)), "reader"),
    "opened, endless": relay.Opened(GROUP, 100),
    "leased": LEASED,
    "extended": relay.Extended(GROUP, LEASED.lease_id, NOON_MS + 5, LEASED.offsets),
    "released": relay.Released(GROUP, LEASED.lease_id, LEASED.offsets),
    "acknowledged": relay.Acknowledged(GROUP, LEASED.offsets),
    "finished": relay.Finished(GROUP, 301, relay.digest_of(LEASED.offsets)),
}
LEASE = Lease(ORDERS_1, TOPIC_ID, GROUP, LEASED.lease_id, LEASED.offsets, NOON_MS)
SIGNER: Final = TokenSigner(bytes(range(32)))
MAP = OffsetMap(
    bytes(range(16)), bytes(range(16, 32)), 41, 100, OffsetSet.of((101, 105), (109, 110))
)
