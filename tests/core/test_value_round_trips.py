"""Windows, plans, bounds, times and strict JSON: round trips, and what is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    AtOffset,
    AtTime,
    Committed,
    ConfigError,
    Earliest,
    Latest,
    PlanTooLargeError,
    Relative,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.time_ranges import (
    LATE_STEPS_MAX,
    NOBODY,
    LateSteps,
    TimeRange,
    TimeSplit,
    rows_by_label,
)
from kafka_ordered_ops.core.times import (
    duration_text,
    parse_duration_ms,
    parse_time_ms,
    time_ms,
    time_text,
)
from kafka_ordered_ops.core.types import PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.bounds import Bound, parse_bound
from kafka_ordered_ops.core.window.plan import PLAN_RANGES_MAX, PartitionPlan, check_plan_size
from kafka_ordered_ops.core.window.window_id import (
    check_window_id,
    default_window_id,
    readable_window_id,
)
from tests.support.strategies import late_steps, time_ranges, timestamps, window_plans, windows

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@given(window_plans)
def test_a_plan_survives_its_json(plan: WindowPlan) -> None:
    """To text and back: the same value; equal values give equal text."""
    again = WindowPlan.from_text(plan.to_text())
    assert again == plan
    assert again.to_text() == plan.to_text()


@given(window_plans, st.data())
def test_a_plan_with_anything_missing_or_added_is_refused(plan: WindowPlan, data: Any) -> None:
    """The parser is strict: no field may be left out, added, or of another type."""
    fields = plan.to_json()
    name = data.draw(st.sampled_from(sorted(fields)))
    for changed in (
        {key: value for key, value in fields.items() if key != name},
        {**fields, "surplus": 1},
        {**fields, name: 1.5},
        {**fields, "version": 3},
    ):
        with pytest.raises(ConfigError, match="not a window plan"):
            WindowPlan.from_text(strict_json.dumps(changed))


@given(st.text(max_size=200) | st.binary(max_size=50).map(lambda data: data.decode("latin-1")))
def test_text_that_is_no_plan_is_a_named_error(text: str) -> None:
    """Whatever stands in a file, the answer is a ConfigError."""
    with pytest.raises(ConfigError):
        WindowPlan.from_text(text)


@pytest.mark.parametrize(
    ("text", "limit_bytes"),
    [
        ('{"a": NaN}', 100),
        ('{"a": Infinity}', 100),
        ('{"a": 1e999}', 100),
        ('{"a": 1, "a": 2}', 100),
        ("[" * 100_000, 200_000),
        ("9" * 5_000, 10_000),
        ('{"a": 9223372036854775808}', 100),
        ("", 100),
        ('"' + "x" * 100 + '"', 100),
    ],
)
def test_dangerous_json_is_refused(text: str, limit_bytes: int) -> None:
    """What the standard parser takes, or dies of, is refused by name."""
    with pytest.raises(JsonError):
        strict_json.loads(text, limit_bytes=limit_bytes)


frozen_windows = st.lists(st.tuples(st.integers(0, 30), time_ranges), max_size=8)


@given(frozen_windows, st.integers(0, 32))
def test_late_steps_say_what_each_frozen_window_says(
    frozen: list[tuple[int, TimeRange]], base: int
) -> None:
    """They equal brute force over all frozen windows; trimming them changes nothing above the base."""
    steps = LateSteps()
    for end, times in frozen:
        steps = steps.with_step(end, times)
    offsets = np.repeat(np.arange(33), 46)
    stamps = np.tile(np.arange(-4, 42), 33)
    expected = np.array(
        [
            any(end <= offset and since <= time < before for end, (since, before) in frozen)
            for offset, time in zip(offsets.tolist(), stamps.tolist(), strict=True)
        ]
    )
    assert (steps.mask(offsets, stamps) == expected).all()
    assert LateSteps.from_json(steps.to_json()) == steps
    above, trimmed = offsets >= base, steps.from_offset(base)
    assert (trimmed.mask(offsets[above], stamps[above]) == expected[above]).all()
    assert trimmed.times == steps.times
    covered = [
        any(since <= time < before for _, (since, before) in frozen) for time in range(-4, 42)
    ]
    assert [steps.cover(TimeRange(time, time + 1)) for time in range(-4, 42)] == covered


@given(late_steps, st.none() | timestamps)
def test_an_interval_flags_each_record_stamped_before_it(
    steps: LateSteps, since_ms: int | None
) -> None:
    """Records of planned times before it are late at any offset; all other flags stay the same."""
    mine = steps.in_interval(since_ms)
    offsets, stamps = np.repeat(np.arange(62), 46), np.tile(np.arange(-4, 42), 62)
    earlier = np.zeros(len(stamps), dtype=bool) if since_ms is None else stamps < since_ms
    planned = np.array([steps.cover(TimeRange(time, time + 1)) for time in range(-4, 42)])
    # An interval holds no record of an earlier time that is not planned.
    held = ~earlier | np.tile(planned, 62)
    expected = np.where(earlier, True, steps.mask(offsets, stamps))
    assert (mine.mask(offsets, stamps) == expected)[held].all()
    assert LateSteps.from_json(mine.to_json()) == mine


@given(frozen_windows, frozen_windows)
def test_many_frozen_windows_at_once_are_those_one_by_one(
    known: list[tuple[int, TimeRange]], more: list[tuple[int, TimeRange]]
) -> None:
    """One sweep over any number of windows gives the same pieces, in whatever order they come."""
    begun = LateSteps().with_steps(known)
    one_by_one = begun
    for end, times in more:
        one_by_one = one_by_one.with_step(end, times)
    assert begun.with_steps(more) == one_by_one
    assert begun.with_steps(reversed(more)) == one_by_one
    assert LateSteps().with_steps([*known, *more]) == one_by_one


@given(st.lists(st.integers(-1, 5), max_size=20))
def test_rows_by_label_deals_every_row_once(labels: list[int]) -> None:
    """Each label that occurs, rising, with exactly the places where it stands, rising."""
    dealt = [
        (label, rows.tolist()) for label, rows in rows_by_label(np.array(labels, dtype=np.int64))
    ]
    assert dealt == [
        (label, [at for at, one in enumerate(labels) if one == label])
        for label in sorted(set(labels))
    ]


def test_late_steps_are_bounded() -> None:
    """Thousands of windows that never touch: the oldest go; ones that touch are merged instead."""
    apart, touching = LateSteps(), LateSteps()
    for n in range(LATE_STEPS_MAX + 50):
        apart = apart.with_step(n, TimeRange(3 * n, 3 * n + 1))
        touching = touching.with_step(n, TimeRange(n, n + 1))
    assert len(apart.pieces) == len(touching.pieces) == LATE_STEPS_MAX
    assert apart.pieces[-1] == (TimeRange(3 * n, 3 * n + 1), n)
    assert touching.times == (TimeRange(0, LATE_STEPS_MAX + 50),)
    for steps in (apart, touching):
        for since_ms in (steps.pieces[0][0].since_ms + 1, steps.pieces[-1][0].since_ms + 1):
            mine = steps.in_interval(since_ms)
            assert len(mine.pieces) <= LATE_STEPS_MAX
            assert mine.pieces[0][0].since_ms == steps.pieces[0][0].since_ms


@given(
    st.lists(st.lists(time_ranges, max_size=3), max_size=4),
    st.lists(st.tuples(timestamps, st.integers(0, 9)), max_size=5),
)
def test_a_time_goes_to_the_first_window_that_asks_for_it(
    wanted: list[list[TimeRange]], bounds: list[tuple[int, int]]
) -> None:
    """Labels, and whether all times between two bounds have the same one, equal brute force."""

    def owner(time: int) -> int:
        takers = (n for n, ranges in enumerate(wanted) if any(s <= time < b for s, b in ranges))
        return next(takers, NOBODY)

    split = TimeSplit.of(wanted)
    stamps = np.arange(-4, 60)
    assert split.labels(stamps).tolist() == [owner(time) for time in range(-4, 60)]
    least = np.array([low for low, _ in bounds], dtype=np.int64)
    greatest = np.array([low + span for low, span in bounds], dtype=np.int64)
    labels, same = split.common(least, greatest)
    for number, (low, span) in enumerate(bounds):
        owners = {owner(time) for time in range(low, low + span + 1)}
        assert bool(same[number]) == (len(owners) == 1)
        if same[number]:
            assert owners == {int(labels[number])}


@given(windows)
def test_a_window_survives_its_json(window: Window) -> None:
    """To JSON and back: the same question."""
    text = strict_json.dumps(window.to_json())
    again = Window.from_json(strict_json.loads(text, limit_bytes=10_000))
    assert again == window
    assert not again.differences(window)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": []}, "at least one"),
        ({"topics": 5}, "give a name or pattern, or a list"),
        ({"topics": ["orders"], "exclude": 5}, "exclude is 5"),
        ({"topics": ["no spaces"]}, "topic name"),
        ({"topics": ["^("]}, "regular expression"),
        ({"topics": ["orders"], "cutoff": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"topics": ["orders"], "max_out_of_orderness": timedelta(-1)}, "negative"),
    ],
)
def test_a_window_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    """Before anything is touched, by name."""
    with pytest.raises(ConfigError, match=message):
        Window(**{"cutoff": NOON, **arguments})


def test_the_same_question_has_the_same_id() -> None:
    """The order of topics and the start do not matter; the group, the topics and the cutoff do."""
    one = default_window_id("g", Window(["b", "a"], NOON))
    assert one == default_window_id("g", Window(["a", "b", "a"], NOON))
    assert one == default_window_id("g", Window(["a", "b"], NOON, starting_offsets=Earliest()))
    others = [
        default_window_id("h", Window(["a", "b"], NOON)),
        default_window_id("g", Window(["a"], NOON)),
        default_window_id("g", Window(["a", "b"], NOON + timedelta(hours=1))),
        default_window_id("g", Window(["a", "b"], NOON, exclude=["c"])),
    ]
    assert len({one, *others}) == 5


_NAMES = st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace").decode())


@given(_NAMES, _NAMES, _NAMES)
def test_a_readable_id_is_an_id_and_keeps_windows_apart(
    one: str, other: str, distinct: str
) -> None:
    """Whatever the names of DAGs, tasks, assets and partitions."""
    window_id = readable_window_id(one, other, distinct=[one, other])
    assert check_window_id(window_id) == window_id
    # A piece of a partition adds the moment up to which it reads.
    check_window_id(f"{window_id}@2026-11-20T12-00-00.123Z")
    assert (readable_window_id(one, other, distinct=distinct) == window_id) is False
    assert (readable_window_id(one, distinct, distinct=[one, distinct]) == window_id) is (
        distinct == other
    )


@given(windows)
def test_a_default_id_has_the_window_s_times(window: Window) -> None:
    """It is an id, and its times are read back."""
    window_id = default_window_id("group", window)
    assert check_window_id(window_id) == window_id
    times = [
        datetime.fromisoformat(re.sub(r"T(\d\d)-(\d\d)-(\d\d)(?:_(\d+))?", _iso, text))
        for text in re.findall(r"[\d-]+T[\d_-]+?Z", window_id)
    ]
    assert times == [time for time in (window.since, window.cutoff) if time is not None]


def _iso(time: re.Match[str]) -> str:
    hours, minutes, seconds, fraction = time.groups()
    return f"T{hours}:{minutes}:{seconds}" + (f".{fraction}" if fraction else "")


@given(windows, windows)
def test_default_ids_sort_by_time(one: Window, other: Window) -> None:
    """Windows of one kind: by their start, then by their end, to the millisecond."""
    bounds = [
        (window.cutoff if window.since is None else window.since, window.cutoff)
        for window in (one, other)
    ]
    if (one.since is None) != (other.since is None) or bounds[0] == bounds[1]:
        return
    names = [default_window_id("group", window) for window in (one, other)]
    assert (names[0] < names[1]) == (bounds[0] < bounds[1])


@pytest.mark.parametrize(
    ("window_id", "suggestion"),
    [
        ("2026-11-20T12:00:00Z", "such as 2026-11-20T12-00-00Z"),
        ("_hidden", "such as hidden"),
        ("../up", "such as up"),
        ("a/b=c", "such as a-b-c"),
        ("\u043e", "letter or digit$"),
    ],
)
def test_an_id_that_cannot_name_a_folder_is_refused(window_id: str, suggestion: str) -> None:
    """The error has one that can."""
    with pytest.raises(ConfigError, match=suggestion):
        check_window_id(window_id)


@pytest.mark.parametrize("window_id", ["", "x" * 201, "a\nb", "a\0b"])
def test_window_ids_are_bounded_and_printable(window_id: str) -> None:
    """An id is shown in tables and part of paths."""
    with pytest.raises(ConfigError, match="window id"):
        check_window_id(window_id)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Earliest()),
        ("latest", Latest()),
        ("committed", Committed()),
        ("2026-11-20T12:00:00+00:00", AtTime(1_795_176_000_000)),
        ("2026-11-20T13:00:00.5+01:00", AtTime(1_795_176_000_500)),
        ("-PT1H", Relative(3_600_000)),
        ("-P1DT30M", Relative(88_200_000)),
        ("offset:42", AtOffset(42)),
    ],
)
def test_bounds_are_read_and_written(text: str, bound: Bound) -> None:
    """Each kind has one text, which reads back as itself."""
    assert parse_bound(text) == bound
    assert parse_bound(str(bound)) == bound


@pytest.mark.parametrize(
    "text", ["", "now", "2026-11-20T12:00:00", "-1h", "-P", "offset:-1", "-P1M"]
)
def test_what_is_no_bound_is_refused(text: str) -> None:
    """A typo, a naive time, a span without a fixed length."""
    with pytest.raises(ConfigError, match="starting_offsets"):
        parse_bound(text)


@given(st.integers(-(10**17), 10**17))
def test_times_survive_their_text(timestamp_ms: int) -> None:
    """Also before 1970 and beyond the calendar."""
    assert parse_time_ms(time_text(timestamp_ms), what="time") == timestamp_ms


class OtherDatetime(datetime):
    """A kind of datetime whose differences are no timedelta, as pendulum's."""

    def __sub__(self, other: object) -> Any:
        """Something else."""
        return "an interval"


def test_any_kind_of_datetime_is_a_moment() -> None:
    """What a subclass makes of a difference is its own business."""
    moment = OtherDatetime(2026, 11, 20, 12, tzinfo=UTC)
    assert time_text(time_ms(moment, what="time")) == "2026-11-20T12:00:00Z"
    assert Window(["orders"], cutoff=moment).cutoff_ms == time_ms(moment, what="cutoff")


@given(st.integers(0, 10**13))
def test_spans_survive_their_text(span_ms: int) -> None:
    """Down to the millisecond."""
    assert parse_duration_ms(duration_text(span_ms), what="span") == span_ms


def test_a_plan_past_the_limit_names_its_topic() -> None:
    """One range too many: a named error with the topic and what to do; at the limit it passes."""
    check_plan_size(_plan_of(PLAN_RANGES_MAX))
    with pytest.raises(PlanTooLargeError, match=r"topic busy.*maximum out-of-orderness") as caught:
        check_plan_size(_plan_of(PLAN_RANGES_MAX + 1))
    assert caught.value.topic == "busy"


def test_a_plan_of_too_many_partitions_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in order are not called out of order."""
    monkeypatch.setattr("kafka_ordered_ops.core.window.plan.PLAN_BYTES_MAX", 1_000_000)
    with pytest.raises(
        PlanTooLargeError, match=r"busy: they are of 20,001 partitions. Plan fewer topics"
    ):
        check_plan_size(_plan_of(1, partitions=20_001))


def _plan_of(ranges: int, *, partitions: int = 1) -> WindowPlan:
    starts = np.arange(ranges, dtype=np.int64) * 2
    taken = OffsetSet(np.column_stack((starts, starts + 1)).ravel())
    parts = (
        PartitionPlan(TopicPartition("busy", n), "id", taken, OffsetSet(), 0, 0, LateSteps())
        for n in range(partitions)
    )
    return WindowPlan(
        group_id="g",
        window_id="w",
        window=Window(["busy"], NOON),
        claim_id="c",
        attempt=1,
        status=WindowStatus.PLANNED,
        content=PlanContent.RECORDS,
        planned_at_ms=0,
        partitions=tuple(parts),
    )
