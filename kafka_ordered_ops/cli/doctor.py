"""Checks of everything that windows need. Changes nothing."""

from __future__ import annotations

import logging
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import numpy as np

from kafka_ordered_ops import __version__
from kafka_ordered_ops.cli.options.sink import bundled_java
from kafka_ordered_ops.cli.show.checks import Check, State
from kafka_ordered_ops.cli.show.tables import windows_text
from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.errors import (
    AuthorizationError,
    ConfigError,
    GroupInUseError,
    KafkaOrderedOpsError,
)
from kafka_ordered_ops.core.errors.rights import MissingRight
from kafka_ordered_ops.core.group.checks import unpublished_text
from kafka_ordered_ops.core.group.summaries import untouched_text
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.timestamp_units import (
    RECORD_CURE,
    TimeUnit,
    unit_notes,
    wrong_units,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.schema_registry import Registry
from kafka_ordered_ops.spark.job_checks import check_session
from kafka_ordered_ops.windows import ClientSettings, OrderedWindows
from kafka_ordered_ops.windows.queries.rights import missing_rights, right_to_change

#: Bound for each request: a person is waiting.
_TIMEOUT_S: Final = DefaultTimeout(15.0)

#: Clocks synchronized by NTP differ by less than this.
_CLOCK_MS: Final = 60_000

#: The group for the ledger's checks if none is given: they are the same for all groups.
_ANY_GROUP: Final = "kafka-ordered-ops-doctor"

#: Members named in one check.
_NAMED_MAX: Final = 3

_PACKAGES: Final = ("confluent-kafka", "pyarrow", "pyspark")


def examine(settings: ClientSettings, group_id: str | None, ledger_topic: str) -> list[Check]:
    """Return the checks in order of dependency; without a connection, checks of the cluster end there.

    Raises:
        ConfigError: the group or the ledger has an invalid name.
    """
    checks = list(_cluster(settings, group_id, ledger_topic))
    return [*checks, *_registry(settings), *_versions()]


def _cluster(settings: ClientSettings, group_id: str | None, ledger_topic: str) -> Iterator[Check]:
    where = settings.bootstrap_servers
    try:
        missing = missing_rights(
            settings, group_id, ledger_topic=ledger_topic, timeout_s=_TIMEOUT_S
        )
        own = (
            None if group_id is None else right_to_change(settings, group_id, timeout_s=_TIMEOUT_S)
        )
    except KafkaOrderedOpsError as error:
        yield _failed("connection", error, _connection_cure(where))
        return
    yield Check("connection", State.OK, f"{where} answers")
    yield from _missing(where, missing)
    if not missing:
        may = (
            "use the ledger" if group_id is None else f"plan and commit windows of group {group_id}"
        )
        yield Check("rights", State.OK, f"this principal may {may}")
    if own is not None and own not in missing:
        # For the administrator who grants it to a team.
        text = f"{own.name} is the transactional id of group {group_id}. To grant it: {_right_cure(where, own)}"
        yield Check("transactions", State.OK, text)
    yield from _ledger(settings, group_id, ledger_topic, is_refused=bool(missing))


def _ledger(
    settings: ClientSettings, group_id: str | None, ledger_topic: str, *, is_refused: bool
) -> Iterator[Check]:
    try:
        with (
            _warnings() as warnings,
            OrderedWindows(
                settings,
                _ANY_GROUP if group_id is None else group_id,
                ledger_topic=ledger_topic,
                timeout_s=_TIMEOUT_S,
                lookup_timeout_s=_TIMEOUT_S,
            ) as windows,
        ):
            state, summaries = windows.state(), windows.summaries()
        unread = (
            []
            if state is None
            else missing_rights(
                settings,
                None,
                ledger_topic=ledger_topic,
                about=[state],
                changes=False,
                timeout_s=_TIMEOUT_S,
            )
        )
        with open_lookup(settings, timeout_s=_TIMEOUT_S) as lookup:
            members = [] if group_id is None else lookup.group_members(group_id)
            refused = {right.name for right in unread}
            group_topics = set() if state is None else set(state.topics)
            topics = lookup.existing([ledger_topic, *sorted(group_topics - refused)])
            newest = lookup.greatest_timestamps(
                [
                    TopicPartition(name, number)
                    for name, facts in topics.items()
                    for number in facts.partitions
                ]
            )
    except GroupInUseError as error:
        yield _failed("group", error, "use another group id")
        return
    except KafkaOrderedOpsError as error:
        # A refusal is explained by the rights that are missing.
        if not (is_refused and isinstance(error, AuthorizationError)):
            yield _failed("ledger", error, None)
        return
    yield from _missing(settings.bootstrap_servers, unread)
    for text in warnings:
        yield Check("ledger", State.WARNING, text)
    if ledger_topic not in topics:
        yield Check("ledger", State.OK, f"{ledger_topic} is created by the first plan")
    elif not warnings:
        yield Check("ledger", State.OK, f"{ledger_topic} stores progress")
    if members:
        yield Check(
            "group",
            State.WARNING,
            f"{group_id} has {len(members)} live members: no window is planned or committed",
            f"stop {', '.join(members[:_NAMED_MAX])}, or use another group for the windows",
        )
    if group_id is not None:
        text = (
            "has not planned a window yet"
            if state is None
            else f"has {windows_text(len(state.open))} open"
        )
        yield Check("group", State.OK, f"{group_id} {text}")
        now_ms = int(time.time() * 1000)
        if untouched := summaries.untouched(DEFAULT_POLICY.claim_age, now_ms=now_ms):
            yield Check(
                "group",
                State.WARNING,
                f"{group_id} has {untouched_text(untouched, now_ms=now_ms)}",
                f"kafka-ordered-ops windows abandon -b {settings.bootstrap_servers} -g {group_id} {untouched[0].window_id}",
            )
        if state is not None and state.unpublished:
            yield Check(
                "group",
                State.WARNING,
                f"{group_id} has {unpublished_text(state.unpublished)}",
                "run one of its windows with the same output: that publishes them",
            )
    yield from _times({tp: stamp for tp, stamp in newest.items() if stamp is not None})


def _times(newest: dict[TopicPartition, int]) -> Iterator[Check]:
    """Look at the greatest timestamps: are they milliseconds, and not after this machine's time?"""
    now_ms = int(time.time() * 1000)
    stamps = {tp: np.array([stamp]) for tp, stamp in newest.items()}
    what = "the greatest timestamps"
    for note in unit_notes(stamps, TimeUnit.MILLISECONDS, what, now_ms=now_ms):
        yield Check("timestamps", State.WARNING, note, RECORD_CURE)
    yield _clock(
        {
            tp: stamp
            for tp, stamp in newest.items()
            if not wrong_units(stamps[tp], TimeUnit.MILLISECONDS, now_ms=now_ms)
        },
        now_ms,
    )


def _clock(newest: dict[TopicPartition, int], now_ms: int) -> Check:
    """Compare the clock with timestamps of other programs: Kafka has no request for the time."""
    ahead_ms = max(newest.values(), default=0) - now_ms
    if ahead_ms <= _CLOCK_MS:
        return Check("clock", State.OK, "no record has a timestamp after this machine's time")
    tp = max(newest, key=lambda partition: newest[partition])
    return Check(
        "clock",
        State.WARNING,
        f"a record of {tp} has a timestamp {duration_text(ahead_ms // 1000 * 1000)} after this machine's time",
        "synchronize this machine's clock by NTP (timedatectl), or that of the machine that wrote the record",
    )


def _registry(settings: ClientSettings) -> Iterator[Check]:
    try:
        if (registry := Registry.of(settings)) is None:
            return
        registry.connect().check()
    except KafkaOrderedOpsError as error:
        yield _failed("registry", error, "check schema.registry.url, and the credentials")
    else:
        yield Check("registry", State.OK, f"{registry.shown_url} answers")


def _versions() -> Iterator[Check]:
    versions = {name: number for name in _PACKAGES if (number := _version(name)) is not None}
    listing = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield Check(
        "versions",
        State.OK,
        f"kafka-ordered-ops {__version__}, Python {platform.python_version()}, {listing}",
    )
    try:
        check_session({}, java_home=bundled_java())
    except ConfigError as error:
        cure = "pip install 'kafka-ordered-ops[spark]', or run with --engine local, which needs no Spark"
        yield Check("spark", State.WARNING, error.message, cure)
    else:
        yield Check(
            "spark", State.OK, f"pyspark {versions.get('pyspark', 'on the path')} has a Java"
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _failed(name: str, error: KafkaOrderedOpsError, cure: str | None) -> Check:
    return Check(name, State.FAILED, f"{type(error).__name__}: {error}", cure)


def _connection_cure(where: str) -> str:
    return (
        f"check that this machine can reach a broker's listener at {where}, and that security.protocol and the "
        "credentials in --config match that listener"
    )


def _missing(where: str, missing: Sequence[MissingRight]) -> Iterator[Check]:
    for right in missing:
        yield Check("rights", State.FAILED, f"missing: {right}", _right_cure(where, right))


def _right_cure(where: str, missing: MissingRight) -> str:
    """Return the command of Kafka's own tool."""
    operations = " ".join(f"--operation {operation}" for operation in missing.operations)
    resource = f"--{missing.resource.replace(' ', '-')} {shlex.quote(missing.name)}"
    prefixed = " --resource-pattern-type prefixed" if missing.is_prefix else ""
    return (
        f"kafka-acls.sh --bootstrap-server {shlex.quote(where)} --add --allow-principal User:NAME "
        f"{operations} {resource}{prefixed}"
    )


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the ledger's warnings, and keep them out of the log."""
    messages = list[str]()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                messages.append(record.getMessage())

    logger, handler = logging.getLogger("kafka_ordered_ops.ledger"), Keep()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
