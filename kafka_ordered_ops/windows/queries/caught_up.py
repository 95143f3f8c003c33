"""Check whether a group has caught up with a cutoff, from the ledger and the broker's index."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.liveness.caught_up import CatchUp
from kafka_ordered_ops.core.liveness.caught_up import caught_up as judge
from kafka_ordered_ops.core.liveness.live_search import LivenessRule
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.liveness_facts import LivenessQuestion, log_facts
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_ledger, open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings


def caught_up(
    settings: ClientSettings,
    group_id: str,
    window: Window,
    *,
    ledger_topic: str = LEDGER_TOPIC,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.time,
) -> CatchUp:
    """Return whether all records that a window asks for are committed, by any windows of the group.

    The check reads no records, does not join the group, and changes nothing. `timeout_s` limits all requests together.

    Raises:
        UnknownTopicError, BrokerError, LedgerError
    """
    question = LivenessQuestion(
        window.topics, window.exclude, window.isolation, LivenessRule(window.cutoff_ms)
    )
    with (
        calls.call(f"group {group_id}: has it caught up", timeout_s),
        open_lookup(settings, timeout_s=timeout_s) as lookup,
        open_ledger(settings, lookup, topic=ledger_topic, timeout_s=timeout_s) as ledger,
    ):
        # Read the logs before the ledger: commits in between count, records written in between do not.
        facts = log_facts(lookup, question)
        view = ledger.read(group_id)
        if view.state is not None and view.state.unpublished:
            view = ledger.read(group_id, view.state.unpublished)
    return judge(view, facts, window.times, now_ms=int(clock() * 1000))
