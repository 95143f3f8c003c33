"""Find the missing rights of this principal for windows of a group, before the first one or after a refused call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern
from kafka_ordered_ops.core.errors import AuthorizationError
from kafka_ordered_ops.core.errors.rights import MissingRight, rights_text
from kafka_ordered_ops.core.group.group_state import GroupState
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.rights import RightsCheck, right_on_transactions
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Time limit of each request after a refusal, within the remaining time of the refused call.
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
    """Return the rights that are missing to plan and commit windows of a group; an empty list if none is missing.

    Nothing is changed, and the group's running windows are not disturbed. A cluster that does not report rights is
    assumed to grant them.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group; None omits the group and its transactional id.
        ledger_topic: the topic that stores plans and progress.
        about: windows, plans, group states, and lists of them, whose topics will be read.
        changes: whether windows are planned or committed, not only read.
        timeout_s: time limit for all requests.

    Raises:
        BrokerError: or a subclass; the cluster cannot be reached within `timeout_s`, or refuses the credentials.
        ConfigError: the client refuses the settings.
    """
    if settings.memory_name is not None:
        return []
    with calls.call("asking for rights", timeout_s):
        check = RightsCheck(settings, timeout_s=timeout_s)
        cluster_id = check.cluster_id()
        return [
            *(
                right
                for selection in _topics(about)
                for right in check.missing_on_topics(*selection)
            ),
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
    """Return the right that is needed on the group's transactional id; None for a Kafka in memory.

    Raises:
        BrokerError: or a subclass, as for `missing_rights`.
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
    """Add all missing rights to an `AuthorizationError` of the block: a call ends at the first missing right."""
    try:
        yield
    except AuthorizationError as error:
        if "missing" in error.facts:
            # An inner call has added them already.
            raise
        message, missing = error.message, list[MissingRight]()
        try:
            missing = missing_rights(
                settings,
                group_id,
                ledger_topic=ledger_topic,
                about=about,
                changes=changes,
                timeout_s=_TIMEOUT_S,
            )
        except Exception as unknown:  # noqa: BLE001 - no error here may hide the refusal
            message += (
                f". Other rights may be missing as well: the check of them failed ({unknown})"
            )
        else:
            if not missing:
                raise
            message += f". All missing rights of this principal: {rights_text(missing)}"
        raise AuthorizationError(message, **{**error.facts, "missing": tuple(missing)}) from error


def _topics(
    about: Iterable[object],
) -> set[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    """Return names, patterns and excluded topics of windows, each once; plans only have names."""
    selections = set()
    for subject in about:
        if isinstance(subject, Window):
            names = tuple(name for name in subject.topics if not is_pattern(name))
            patterns = tuple(name for name in subject.topics if is_pattern(name))
            selections.add((names, patterns, tuple(subject.exclude)))
        elif isinstance(subject, GroupState):
            selections.add((tuple(sorted(subject.topics)), (), ()))
        elif isinstance(subject, WindowPlan):
            selections.add((tuple(sorted({part.tp.topic for part in subject})), (), ()))
        elif isinstance(subject, Sequence) and not isinstance(subject, str | bytes):
            selections |= _topics(subject)
    return selections
