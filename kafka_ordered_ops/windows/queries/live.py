"""Check whether a window is complete enough to plan, once or until it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.liveness.live_search import LivenessRule
from kafka_ordered_ops.core.liveness.liveness import Liveness, answer
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.liveness_facts import LOOK_OFFSETS_MAX, LivenessQuestion, look
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import LookupDoor, open_ledger, open_lookup
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings

#: Time between two checks, at first and after every change; doubled after each check without a change.
PAUSE_S: Final = 2.0
#: The longest pause, and so the longest delay before a partition that becomes live is noticed.
PAUSE_MAX_S: Final = 15.0
#: The group id of reads without a group. It is never joined, and nothing is committed.
READS_AS: Final = "kafka-ordered-ops-live"


def check_live(
    lookup: LookupDoor,
    settings: ClientSettings,
    group_id: str | None,
    window: Window,
    *,
    grace: timedelta | str | None = None,
    now_ms: int,
    view: GroupView | None = None,
    before: Liveness | None = None,
    offsets_max: int = LOOK_OFFSETS_MAX,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> Liveness:
    """Check the partitions of a window once; nothing is planned or changed.

    The function keeps no state between calls, and may run in any thread with its own `lookup`.

    Args:
        lookup: sends requests to the cluster.
        settings: how to read from the cluster.
        group_id: the group for which timestamps are read; not joined.
        window: topics, cutoff, maximum out-of-orderness and isolation of this window are used.
        grace: how long after the cutoff (and the maximum out-of-orderness) a silent partition counts as idle; None
            means never.
        now_ms: the current time, ms since the epoch.
        view: the group in the ledger, for its lag and its open windows.
        before: an earlier answer for the same window, whose records are not read again.
        offsets_max: the maximum number of offsets to read from one partition.
        stall_timeout_s: how long a read waits while no position moves.

    Raises:
        ConfigError: a negative grace.
        UnknownTopicError: a topic does not exist, or no topic matches.
        BrokerError, ReadError: the cluster refuses a request, or cannot be reached or read.
    """
    question = LivenessQuestion(
        window.topics, window.exclude, window.isolation, liveness_rule(window, grace)
    )
    looked = look(
        lookup,
        settings,
        group_id or READS_AS,
        question,
        now_ms=now_ms,
        seen={} if before is None else before.seen_for(question.rule, window.isolation),
        offsets_max=offsets_max,
        stall_timeout_s=stall_timeout_s,
    )
    return answer(question.rule, window.isolation, looked, view, now_ms=now_ms)


def live(
    settings: GivenSettings,
    window: Window,
    group_id: str | None = None,
    *,
    grace: timedelta | str | None = None,
    before: Liveness | None = None,
    ledger_topic: str = LEDGER_TOPIC,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.time,
) -> Liveness:
    """Run `check_live` on its own connections, with the group's facts from the ledger.

    The group may be unknown to the ledger, and the cluster may have no ledger; none is created. `timeout_s` limits all
    waiting except reading timestamps. Raises the errors of `check_live`, and `LedgerError`.
    """
    settings = ClientSettings.of(settings)
    with (
        calls.call("looking at partitions", timeout_s),
        open_lookup(settings, timeout_s=timeout_s) as lookup,
    ):
        view = None
        if group_id is not None:
            with open_ledger(settings, lookup, topic=ledger_topic, timeout_s=timeout_s) as ledger:
                view = ledger.read(group_id)
        return check_live(
            lookup,
            settings,
            group_id,
            window,
            grace=grace,
            now_ms=int(clock() * 1000),
            view=view,
            before=before,
        )


def wait_live(
    look_again: Callable[[Liveness | None], Liveness],
    *,
    timeout_s: float,
    report: Callable[[Liveness], None] = lambda _: None,
    failed: Callable[[KafkaOrderedOpsError], None] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> Liveness:
    """Check until all partitions are live or idle, or until the deadline; return the last answer.

    `look_again` gets the previous answer, or None at first. After a first answer, a check that fails with a retriable
    error is reported to `failed` and repeated: a broker may be restarting. The last check is made at the deadline, and
    its error is raised. `pause` waits a number of seconds, and may end early.
    """
    deadline = time.monotonic() + timeout_s
    latest = look_again(None)
    report(latest)
    pause_s = PAUSE_S
    while not latest.is_live and (left_s := deadline - time.monotonic()) > 0:
        pause(min(pause_s, left_s))
        newer: Liveness | None = None
        try:
            newer = look_again(latest)
        except KafkaOrderedOpsError as error:
            if not error.retriable or time.monotonic() >= deadline:
                raise
            failed(error)
        unchanged = newer is None or newer.same_as(latest)
        pause_s = min(2 * pause_s, PAUSE_MAX_S) if unchanged else PAUSE_S
        if newer is not None:
            latest = newer
            report(latest)
    return latest


def liveness_rule(window: Window, grace: timedelta | str | None) -> LivenessRule:
    """Return the rule for a window and a grace; raise `ConfigError` for a negative grace."""
    span = None if grace is None else as_span(grace, what="grace")
    return LivenessRule(
        cutoff_ms=window.cutoff_ms,
        out_of_orderness_ms=window.out_of_orderness_ms or 0,
        grace_ms=None if span is None else span // timedelta(milliseconds=1),
    )
