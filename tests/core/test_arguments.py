"""Whatever is given to a constructor is refused by name, or is read back from the ledger as itself."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    AtOffset,
    AtTime,
    Committed,
    ConfigError,
    Earliest,
    Latest,
    Policy,
    Relative,
    Window,
)
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import (
    RUN_ID_LENGTH_MAX,
    check_run_id,
    check_timeout_s,
    checked_clock,
)
from kafka_ordered_ops.core.cluster.names import GROUP_LENGTH_MAX, check_group
from kafka_ordered_ops.core.types import Isolation, OnCovered, OnDataLoss
from kafka_ordered_ops.core.window.bounds import parse_bound
from kafka_ordered_ops.core.window.window_id import WINDOW_ID_LENGTH_MAX, check_window_id
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")

#: In Berlin the clock shows this twice, and such a time equals none of another zone.
_TWICE = datetime(2026, 10, 25, 2, 30, fold=1)  # noqa: DTZ001


class Unshowable:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """For Hypothesis, which would otherwise show this error instead of the one it has found."""
        printer.text("Unshowable()")


class Name(str, Enum):  # noqa: UP042 - its text is not its value, unlike a StrEnum's
    """Text that is not printed as what it is."""

    ORDERS = "orders"


numbers = (
    st.integers()
    | st.sampled_from([-2, -1, 0, 2**31, 10**18, 2**63 - 1, 2**63, -(2**63), 10**400])
    | st.floats()
    | st.booleans()
)
texts = (
    st.text(max_size=30)
    | st.sampled_from(
        ["orders", "^orders.*", "a\udc80", "^t\udc80|t", "earliest", "a\nb", "", "^("]
    )
    | st.sampled_from(["x" * 250, "é" * 40_000, "^" + "x" * 100_000, Name.ORDERS])
)
zones: st.SearchStrategy[tzinfo | None] = st.sampled_from(
    [None, UTC, BERLIN, ZoneInfo("America/New_York"), timezone(timedelta(hours=14))]
)
moments = st.datetimes(timezones=zones) | st.builds(
    lambda edge, zone: edge.replace(tzinfo=zone),
    st.sampled_from([datetime.min, datetime.max, _TWICE]),  # noqa: DTZ901 - the zone comes next
    zones,
)
spans = st.timedeltas() | st.sampled_from(
    [timedelta.min, timedelta.max, timedelta(0), timedelta(microseconds=400)]
)
bounds = st.sampled_from([Earliest(), Latest(), Committed(), Earliest, AtTime, None])
anything = st.one_of(
    numbers,
    texts,
    moments,
    spans,
    bounds,
    st.none(),
    st.binary(max_size=5),
    st.sampled_from([Decimal(5), date(2026, 1, 1), time(1), object(), Unshowable(), Unshowable]),
    st.sampled_from([*Isolation, *OnDataLoss, *OnCovered, 1j, math.nan, [], {}, set(), ...]),
    st.lists(texts | numbers, max_size=3),
    st.sets(texts, max_size=3),
)


def parsed(value: Any) -> Any:
    """What the ledger's parser gives for a value's JSON."""
    text = strict_json.dumps(value).encode()
    return strict_json.loads(text, limit_bytes=10**6)


def window_fields() -> dict[str, st.SearchStrategy[Any]]:
    """For each argument what may be right, and anything."""
    return {
        "topics": st.just(["orders"]),
        "cutoff": moments,
        "starting_offsets": bounds
        | st.integers(0, 2**63 - 1).map(AtOffset)
        | st.integers(-(2**63), 2**63 - 1).map(AtTime)
        | st.integers(0, timedelta.max // timedelta(milliseconds=1)).map(Relative),
        "max_out_of_orderness": spans,
        "isolation": st.sampled_from(["read_committed", Isolation.READ_UNCOMMITTED, "none"]),
        "exclude": st.just(()) | st.just(["^x"]),
        "on_data_loss": st.sampled_from(["warn", OnDataLoss.FAIL, "ignore"]),
        "allow_future_cutoff": st.booleans(),
        "since": st.none() | moments,
        "sweep": st.booleans(),
    }


@st.composite
def window_arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a window, some of them anything."""
    fields = window_fields()
    wrong = draw(st.sets(st.sampled_from(sorted(fields)), max_size=2))
    given_ = draw(st.sets(st.sampled_from(sorted(fields)))) | {"topics", "cutoff"}
    return {name: draw(anything if name in wrong else fields[name]) for name in sorted(given_)}


@given(window_arguments())
@example({"topics": ["orders"], "cutoff": _TWICE.replace(tzinfo=BERLIN)})
@example(
    {"topics": ["orders"], "cutoff": NOON, "max_out_of_orderness": timedelta(microseconds=400)}
)
@example({"topics": ["orders"], "cutoff": NOON, "max_out_of_orderness": timedelta.max})
@example({"topics": ["orders"], "cutoff": NOON, "starting_offsets": AtOffset(2**63 - 1)})
def test_a_window_is_refused_or_read_back_as_itself(arguments: dict[str, Any]) -> None:
    """No argument of any type is found wrong later than here."""
    try:
        window = Window(**arguments)
    except ConfigError:
        return
    again = Window.from_json(parsed(window.to_json()))
    assert again == window
    assert again.to_json() == window.to_json()
    assert (again.cutoff_ms, again.since_ms, again.out_of_orderness_ms) == (
        window.cutoff_ms,
        window.since_ms,
        window.out_of_orderness_ms,
    )


@given(st.sampled_from([AtTime, Relative, AtOffset]), anything)
@example(AtOffset, 10**18)
@example(AtOffset, True)
@example(Relative, 10**18)
@example(Relative, -1000)
def test_a_bound_is_refused_or_read_back_as_itself(
    kind: Callable[[Any], AtTime | Relative | AtOffset], value: Any
) -> None:
    """Fractions, booleans and what is out of range are no places to start at."""
    try:
        bound = kind(value)
    except ConfigError:
        return
    again = parse_bound(str(bound))
    assert again == bound
    assert type(next(iter(vars_of(again)))) is int


def vars_of(bound: Any) -> list[Any]:
    """The fields of a frozen value with slots."""
    return [getattr(bound, name) for name in type(bound).__slots__]


@given(st.dictionaries(st.sampled_from(Policy.__slots__), anything))
def test_a_policy_is_refused_or_has_what_it_says(arguments: dict[str, Any]) -> None:
    """Choices are members, spans are not negative, and flags are booleans."""
    try:
        policy = Policy(**arguments)
    except ConfigError:
        return
    assert isinstance(policy.on_covered, OnCovered)
    assert isinstance(policy.redefine, bool)
    assert policy.claim_age > timedelta(0)
    assert policy.claim_wait >= timedelta(0)
    assert pickle.loads(pickle.dumps(policy)) == policy


@given(anything)
@example("x" * (GROUP_LENGTH_MAX + 1))
def test_names_are_refused_or_survive_json(value: Any) -> None:
    """Groups, window ids and run ids: printable text of a bounded length."""
    for check, length_max in (
        (check_group, GROUP_LENGTH_MAX),
        (check_window_id, WINDOW_ID_LENGTH_MAX),
        (check_run_id, RUN_ID_LENGTH_MAX),
    ):
        try:
            kept = check(value)
        except ConfigError:
            continue
        if kept is None:
            continue
        assert type(kept) is str
        assert kept == value
        assert len(kept) <= length_max
        assert strict_json.loads(strict_json.dumps([kept]).encode(), limit_bytes=10_000) == [kept]


@given(anything)
def test_clocks_and_bounds_in_seconds_are_finite(value: Any) -> None:
    """A clock that runs wild, or a deadline that is none, is refused before it is used."""
    with contextlib.suppress(ConfigError):
        assert 0 <= checked_clock(lambda: value)() * 1000 < 2**63
    with contextlib.suppress(ConfigError):
        assert 0 < check_timeout_s(value, what="timeout_s") <= 31 * 86_400


@pytest.mark.parametrize(
    "arguments",
    [
        {"group_id": None},
        {"group_id": ""},
        {"group_id": "a\udc80"},
        {"group_id": "x" * 40_000},
        {"group_id": b"g"},
        {"settings": None},
        {"settings": ""},
        {"settings": ["localhost:9092"]},
        {"run_id": 5},
        {"run_id": "a\udc80"},
        {"run_id": "x" * 1_000},
        {"timeout_s": math.nan},
        {"timeout_s": -5},
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"lookup_timeout_s": math.inf},
        {"lookup_timeout_s": None},
        {"stall_timeout_s": True},
        {"stall_timeout_s": 10**12},
        {"clock": 5},
        {"ledger_topic": 5},
        {"ledger_topic": "no topic"},
    ],
)
def test_a_service_that_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    """Each of them by name, at once, and with nothing opened."""
    wanted: dict[str, Any] = {"settings": {"bootstrap.servers": "memory:x"}, "group_id": "g"}
    with pytest.raises(ConfigError):
        OrderedWindows(**{**wanted, **arguments})


@pytest.fixture
def windows() -> Any:
    """A group in memory, with a window that is planned."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for number in range(10):
            kafka.produce("orders", value=b"x", timestamp_ms=1_000 * number)
        with OrderedWindows(kafka.settings, "g") as opened:
            yield opened


@pytest.mark.parametrize(
    "call",
    [
        lambda one, plan: one.plan(None),
        lambda one, plan: one.plan(plan),
        lambda one, plan: one.plan(plan.window, 5),
        lambda one, plan: one.plan(plan.window, b"x"),
        lambda one, plan: one.plan(plan.window, "w2", "skip"),
        lambda one, plan: one.preview(plan.window, "w2", None),
        lambda one, plan: one.plan_many([]),
        lambda one, plan: one.plan_many([plan.window], [5]),
        lambda one, plan: one.commit("a"),
        lambda one, plan: one.commit(None),
        lambda one, plan: one.mark_processed(None, {}),
        lambda one, plan: one.mark_processed(plan, None),
        lambda one, plan: one.mark_processed(plan, {"orders": 5}),
        lambda one, plan: one.processed("w"),
        lambda one, plan: one.mark_written(None, {}),
        lambda one, plan: one.mark_written_many([plan], []),
        lambda one, plan: one.publish_many([plan], []),
        lambda one, plan: one.commit_many([plan], []),
        lambda one, plan: one.abandon(None),
        lambda one, plan: one.abandon(5),
        lambda one, plan: one.split(plan, 0),
        lambda one, plan: one.split(plan, 2.5),
        lambda one, plan: one.split(plan, True),
        lambda one, plan: one.split(plan.window, 2),
        lambda one, plan: one.report(plan, {}),
        lambda one, plan: one.prune(5),
        lambda one, plan: one.prune(timedelta(-1)),
        lambda one, plan: one.show(5),
        lambda one, plan: one.live("window"),
        lambda one, plan: one.live(plan.window, grace=5),
        lambda one, plan: one.live(plan.window, grace=timedelta(-1)),
    ],
)
def test_an_argument_that_cannot_be_changes_nothing(
    windows: OrderedWindows, call: Callable[[OrderedWindows, Any], object]
) -> None:
    """A `ConfigError`, and the group is as it was."""
    plan = windows.plan(Window(["orders"], datetime.fromtimestamp(5, UTC), Earliest()), "w")
    state = windows.state()
    with pytest.raises(ConfigError):
        call(windows, plan)
    assert windows.state() == state


def test_a_clock_that_runs_wild_writes_nothing(windows: OrderedWindows) -> None:
    """The time that it tells would be in the ledger, and nobody could read it again."""
    window = Window(["orders"], datetime.fromtimestamp(5, UTC), Earliest())
    for told in (1e18, -1, math.nan, None):

        def clock(value: Any = told) -> Any:
            return value

        with (
            OrderedWindows(windows.settings, "g", clock=clock) as wild,
            pytest.raises(ConfigError, match="clock"),
        ):
            wild.plan(window, "w")
    assert windows.state() is None


def test_an_error_shows_no_more_than_the_beginning_of_a_value() -> None:
    """A group's name of 40,000 characters makes no message of that length."""
    for check in (check_group, check_window_id, check_run_id):
        with pytest.raises(ConfigError) as caught:
            check("x" * 40_000)
        assert len(str(caught.value)) < 300


def test_numbers_of_numpy_are_numbers() -> None:
    """As they come out of a data frame; its truth values are none."""
    assert AtOffset(np.int64(5)) == AtOffset(5)  # type: ignore[arg-type]
    assert type(AtOffset(np.int32(5)).offset) is int  # type: ignore[arg-type]
    assert check_timeout_s(np.int64(5), what="timeout_s") == 5.0
    assert checked_clock(lambda: np.float64(5))() == 5.0
    for odd in (np.bool_(True), np.datetime64(5, "s"), np.timedelta64(5, "s"), np.array([5])):
        with pytest.raises(ConfigError):
            AtOffset(odd)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            check_timeout_s(odd, what="timeout_s")


def test_a_message_does_not_repeat_a_value_of_any_length() -> None:
    """A path, URL or name that is longer than any that can exist is cut in the message of every error."""
    long = ConfigError(f"cannot read {'x' * 100_000}: File name too long")
    assert len(str(long)) < 200
    assert "(100,001 characters) File name too long" in str(long)
    path = f"s3://bucket/{'k' * 1_024}"
    assert path in str(ConfigError(f"cannot read {path}: access denied"))
