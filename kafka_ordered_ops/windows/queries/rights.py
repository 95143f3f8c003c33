"""Which rights does this principal lack for windows of a group? Asked before the first one, or when a call is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kafka_ordered_ops.core.cluster_facts import is_pattern
from kafka_ordered_ops.core.errors import AuthorizationError
from kafka_ordered_ops.core.group.group_state import GroupState
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.rights import MissingRight, rights_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.rights import RightsCheck, right_on_transactions
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Bound of each request after a refusal, within the rest of the refused call's time.
_TIMEOUT_S: Final = 5.0


def missing_rights(
    settings: ClientSettings,
    group_id: str | None,
    *,
    ledger_topic: str = LEDGER_TOPIC,
    about: Iterable[object] = (),
    changes: bool = True,
    timeout_s: float,
) -> list[MissingRight]:
    """Return the rights that are missing to plan and commit windows of a group; none if all are there.

    Nothing is changed, and the group's running windows are not disturbed. A cluster that does not report rights counts
    as one that grants them.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group; None: neither it nor its transactional id is asked about.
        ledger_topic: the topic that holds plans and progress.
        about: windows, plans, group states, and lists of them, whose topics will be read.
        changes: whether windows are planned or committed, not only read.
        timeout_s: bound for all questions.

    Raises:
        BrokerError: and its kinds; the cluster cannot be reached within `timeout_s`, or refuses the
            credentials.
        ConfigError: the client refuses the settings.
    """
    if settings.memory_name is not None:
        return []
    with calls.call("asking for rights", timeout_s):
        check = RightsCheck(settings, timeout_s=timeout_s)
        cluster_id = check.cluster_id()
        return [
            *(right for asked in _topics(about) for right in check.missing_on_topics(*asked)),
            *([] if group_id is None else check.missing_on_group(group_id, changes=changes)),
            *check.missing_on_ledger(ledger_topic, changes=changes),
            *(
                check.missing_on_transactions(cluster_id, group_id)
                if changes and group_id is not None
                else []
            ),
            *(check.missing_to_create(ledger_topic) if changes else []),
        ]


def right_to_change(
    settings: ClientSettings, group_id: str, *, timeout_s: float
) -> MissingRight | None:
    """Return the right on the group's own transactional id, which a principal may have; None in memory.

    Raises:
        BrokerError: and its kinds, as `missing_rights`.
        ConfigError: the client refuses the settings.
    """
    if settings.memory_name is not None:
        return None
    with calls.call("asking for the cluster id", timeout_s):
        return right_on_transactions(
            RightsCheck(settings, timeout_s=timeout_s).cluster_id(), group_id
        )


@contextmanager
def all_rights_named(
    settings: ClientSettings,
    group_id: str | None,
    *,
    ledger_topic: str,
    about: Iterable[object],
    changes: bool,
) -> Iterator[None]:
    """Add to an `AuthorizationError` of the block all rights that are missing: a call ends at the first one it needs."""
    try:
        yield
    except AuthorizationError as error:
        if "missing" in error.facts:
            # Calls use one another: it was asked within.
            raise
        told, missing = error.message, list[MissingRight]()
        try:
            missing = missing_rights(
                settings,
                group_id,
                ledger_topic=ledger_topic,
                about=about,
                changes=changes,
                timeout_s=_TIMEOUT_S,
            )
        except Exception as unknown:  # noqa: BLE001 - whatever it is must not hide the refusal
            told += (
                f". Other rights may be missing, too: the cluster was asked, and failed ({unknown})"
            )
        else:
            if not missing:
                raise
            told += f". All missing rights of this principal: {rights_text(missing)}"
        raise AuthorizationError(told, **{**error.facts, "missing": tuple(missing)}) from error


def _topics(
    about: Iterable[object],
) -> set[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    """Names, patterns and excluded topics of windows, each once; plans have names only."""
    found = set()
    for one in about:
        if isinstance(one, Window):
            names = tuple(name for name in one.topics if not is_pattern(name))
            patterns = tuple(name for name in one.topics if is_pattern(name))
            found.add((names, patterns, tuple(one.exclude)))
        elif isinstance(one, GroupState):
            found.add((tuple(sorted(one.topics)), (), ()))
        elif isinstance(one, WindowPlan):
            found.add((tuple(sorted({part.tp.topic for part in one})), (), ()))
        elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
            found |= _topics(one)
    return found
