"""Constructors take what people have, keep the typed value, and name what is wrong, with the choices."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    AtOffset,
    AtTime,
    ClientSettings,
    Committed,
    ConfigError,
    Earliest,
    Latest,
    Policy,
    Relative,
    Window,
)
from kafka_ordered_ops.core.arguments import as_moment, as_names, as_span
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.core.types import Isolation, OnCovered, OnDataLoss, OnOpenClaim
from kafka_ordered_ops.core.window.bounds import Bound, as_bound, bound_of
from kafka_ordered_ops.core.window.window import check_window
from kafka_ordered_ops.spark import SparkSubmit

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

moments = st.datetimes(
    min_value=datetime(2, 1, 1),  # noqa: DTZ001 - the zone comes next
    max_value=datetime(9998, 12, 31),  # noqa: DTZ001
    timezones=st.sampled_from(
        [UTC, timezone(timedelta(hours=-11)), timezone(timedelta(minutes=330))]
    ),
)
spans = st.timedeltas(min_value=timedelta(0)).map(lambda span: span // _MS * _MS)
bounds: st.SearchStrategy[Any] = (
    st.sampled_from([Earliest(), Latest(), Committed()])
    | st.integers(-(2**63), 2**63 - 1).map(AtTime)
    | st.integers(0, timedelta.max // _MS).map(Relative)
    | st.integers(0, 2**63 - 1).map(AtOffset)
)
topic_names = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


@given(moments)
def test_a_time_is_the_same_as_a_datetime_and_as_text(moment: datetime) -> None:
    """In any zone and form that ISO 8601 has for it; kept in UTC and whole milliseconds."""
    kept = as_moment(moment, what="cutoff")
    assert kept.tzinfo is UTC
    assert timedelta(0) <= moment - kept < _MS
    assert as_moment(moment.isoformat(), what="cutoff") == kept
    assert as_moment(kept.isoformat().replace("+00:00", "Z"), what="cutoff") == kept
    assert Window("t", kept) == Window(["t"], moment.isoformat()) == Window(("t",), cutoff=moment)


@given(spans)
def test_a_span_is_the_same_as_a_timedelta_and_as_text(span: timedelta) -> None:
    """The text is the one that the ledger keeps."""
    text = duration_text(span // _MS)
    assert as_span(span, what="grace") == as_span(text, what="grace") == span
    assert Window("t", NOON, max_out_of_orderness=text) == Window(
        "t", NOON, max_out_of_orderness=span
    )


@given(bounds)
def test_a_bound_is_the_same_typed_and_as_text(bound: Bound) -> None:
    """Every bound has a text, and it is read back as itself."""
    assert as_bound(bound) is bound
    assert as_bound(str(bound)) == bound
    assert Window("t", NOON, starting_offsets=str(bound)).starting_offsets == bound


@given(moments)
def test_a_moment_is_a_bound(moment: datetime) -> None:
    """The first record at or after it."""
    assert as_bound(moment) == as_bound(moment.isoformat()) == AtTime.of(moment)


@given(st.lists(topic_names, min_size=1, max_size=3))
def test_one_topic_needs_no_list(names: list[str]) -> None:
    """A text is one name, never its letters."""
    assert as_names(names[0], what="topics") == (names[0],)
    assert Window(names[0], NOON) == Window([names[0]], NOON)
    assert Window(names, NOON).topics == tuple(sorted(set(names)))


@pytest.mark.parametrize("kind", [Isolation, OnDataLoss])
def test_a_choice_may_be_its_text(kind: Any) -> None:
    """And is kept as the member."""
    name = {Isolation: "isolation", OnDataLoss: "on_data_loss"}[kind]
    for member in kind:
        windows = [Window("t", NOON, **{name: given_}) for given_ in (member, member.value)]
        assert windows[0] == windows[1]
        assert isinstance(getattr(windows[1], name), kind)


def test_a_policy_keeps_typed_values() -> None:
    """From texts throughout."""
    policy = Policy("replay", "take_over", "PT1H", "PT5M", redefine=True)
    assert policy == Policy(
        OnCovered.REPLAY, OnOpenClaim.TAKE_OVER, timedelta(hours=1), timedelta(minutes=5), True
    )
    assert isinstance(policy.on_covered, OnCovered)


def test_a_window_of_a_host_gets_its_times_later() -> None:
    """And is the same window then; without times it cannot be planned."""
    window = Window("orders", exclude="^old.*", starting_offsets=NOON, max_out_of_orderness="PT5M")
    assert (window.topics, window.exclude) == (("orders",), ("^old.*",))
    assert window.at(NOON) == Window(
        "orders", NOON, starting_offsets=NOON, max_out_of_orderness="PT5M", exclude="^old.*"
    )
    with pytest.raises(ConfigError, match="has no cutoff"):
        check_window(window)
    with pytest.raises(ConfigError, match="there is no cutoff"):
        Window("orders", since=NOON)


def test_starting_offsets_may_be_one_for_each_topic() -> None:
    """By name, or by a pattern that it matches; they are stored with the plan, and read back."""
    wanted: dict[str, Any] = {"rates": "-PT1H", "^orders.*": "earliest", "orders-eu": NOON}
    window = Window(list(wanted), NOON, starting_offsets=wanted)
    starts = window.starting_offsets
    assert bound_of(starts, "orders-eu") == AtTime.of(NOON)
    assert bound_of(starts, "orders-us") == Earliest()
    assert bound_of(starts, "rates") == Relative(3_600_000)
    assert bound_of(starts, "other") is None
    again = Window.from_json(json.loads(json.dumps(window.to_json())))
    assert again == window
    assert hash(again) == hash(window)
    for wrong, told in (
        ({"payments": "earliest"}, "payments, and the topics are"),
        ({}, "has nothing"),
        ({"rates": None}, "rates is None"),
        ({"rates": "soon"}, "'soon'"),
    ):
        with pytest.raises(ConfigError, match=told):
            Window("rates", NOON, starting_offsets=wrong)  # type: ignore[arg-type]


def test_settings_are_what_people_have() -> None:
    """Brokers, a mapping, or settings; secrets are in no message."""
    settings = ClientSettings.of("a:9092,b:9092")
    assert settings.bootstrap_servers == "a:9092,b:9092"
    assert ClientSettings.of({"bootstrap.servers": "a:9092,b:9092"}) == settings
    assert ClientSettings.of(settings) is settings
    for wrong in (None, 5, ["a:9092"], "", ClientSettings):
        with pytest.raises(ConfigError, match=r"client settings"):
            ClientSettings.of(wrong)  # type: ignore[arg-type]


def test_one_file_for_spark_submit_is_no_list_of_letters() -> None:
    """Paths as text, and the deploy mode too."""
    how = SparkSubmit(py_files="deps.zip", deploy_mode="client")
    assert how.py_files == ("deps.zip",)
    assert how.deploy_mode == "client"


_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "topics: number": ({"topics": 5}, "topics is 5.*a name or pattern, or a list"),
    "topics: none": ({"topics": []}, "topics is .*at least one"),
    "topics: empty name": ({"topics": ""}, "topics: '' is not a topic name"),
    "topics: a set": ({"topics": {"a"}}, "topics is"),
    "topics: class": ({"topics": str}, "topics is <class 'str'>"),
    "topics: spaces": ({"topics": "a, b"}, "topics: 'a, b' is not a topic name"),
    "topics: pattern": ({"topics": "^("}, "topics: the pattern .* not a regular expression"),
    "exclude": ({"exclude": ["^("]}, "exclude: the pattern"),
    "cutoff: naive": ({"cutoff": datetime(2026, 1, 1)}, "cutoff .* no time zone"),  # noqa: DTZ001
    "cutoff: naive text": ({"cutoff": "2026-11-20T12:00:00"}, "cutoff .* no time zone"),
    "cutoff: words": ({"cutoff": "noon"}, "cutoff 'noon' is not an ISO 8601 time"),
    "cutoff: a day": ({"cutoff": date(2026, 1, 1)}, "cutoff is datetime.date.*: give a datetime"),
    "cutoff: number": ({"cutoff": 1_700_000_000_000}, "cutoff is 1700000000000: give a datetime"),
    "cutoff: beyond": ({"cutoff": "@999999999999999"}, "cutoff .* beyond the calendar"),
    "since": ({"since": "then"}, "since 'then'"),
    "since: class": ({"since": datetime}, "since is <class"),
    "starting_offsets: class": (
        {"starting_offsets": Earliest},
        r"starting_offsets is <class .*'earliest', 'latest', 'committed'.*Earliest\(\)",
    ),
    "starting_offsets: word": (
        {"starting_offsets": "begin"},
        "starting_offsets is 'begin': give 'earliest'",
    ),
    "starting_offsets: naive": (
        {"starting_offsets": "2026-11-20T12:00:00"},
        "starting_offsets is .*no time zone",
    ),
    "starting_offsets: naive datetime": (
        {"starting_offsets": datetime(2026, 1, 1)},  # noqa: DTZ001
        "starting_offsets .* no time zone",
    ),
    "starting_offsets: span": ({"starting_offsets": timedelta(hours=1)}, "starting_offsets is"),
    "starting_offsets: number": ({"starting_offsets": 0}, "starting_offsets is 0"),
    "max_out_of_orderness: text": (
        {"max_out_of_orderness": "10 minutes"},
        "max_out_of_orderness '10 minutes' is not an ISO 8601 duration such as PT10M",
    ),
    "max_out_of_orderness: number": (
        {"max_out_of_orderness": 600},
        "max_out_of_orderness is 600: give a timedelta, or ISO",
    ),
    "max_out_of_orderness: negative": (
        {"max_out_of_orderness": timedelta(-1)},
        "max_out_of_orderness .* negative",
    ),
    "isolation": ({"isolation": "none"}, "isolation is 'none': give one of 'read_committed'"),
    "isolation: class": ({"isolation": Isolation}, "isolation is <enum"),
    "on_data_loss": ({"on_data_loss": 1}, "on_data_loss is 1: give one of 'fail', 'warn'"),
    "sweep": ({"sweep": "yes"}, "sweep is 'yes': give True or False"),
}


@pytest.mark.parametrize("wrong", _WRONG)
def test_what_is_wrong_is_named_with_its_choices(wrong: str) -> None:
    """By the argument's name, with the value."""
    arguments, words = _WRONG[wrong]
    with pytest.raises(ConfigError, match=words):
        Window(**{"topics": "orders", "cutoff": NOON, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"on_covered": OnCovered}, "on_covered is <enum .*'skip', 'replay', 'fail'"),
        ({"on_open_claim": "retry"}, "on_open_claim is 'retry': give one of 'step_around'"),
        ({"claim_age": "PT0S"}, "claim_age is 'PT0S'"),
        ({"claim_age": 5}, "claim_age is 5: give a timedelta"),
        ({"claim_wait": "-PT1H"}, "claim_wait '-PT1H' is not"),
        ({"redefine": "yes"}, "redefine is 'yes'"),
    ],
)
def test_what_is_wrong_with_a_policy_is_named(arguments: dict[str, Any], words: str) -> None:
    """The same."""
    with pytest.raises(ConfigError, match=words):
        Policy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"deploy_mode": "clustre"}, "deploy_mode is 'clustre': give one of 'client', 'cluster'"),
        ({"conf": [("spark.a", "b")]}, "conf is a list"),
        ({"conf": {5: "b"}}, "5 is not a Spark setting"),
        ({"timeout_s": "60"}, "timeout_s is '60': give seconds"),
        ({"timeout_s": float("nan")}, "timeout_s is nan: give seconds"),
        ({"grace_s": True}, "grace_s is True: give seconds"),
        ({"jars": 5}, "jars is 5"),
        ({"jars": [b"a.jar"]}, "jars has b'a.jar' in it: give a list of paths"),
        ({"files": {"a": 1}}, "files is {'a': 1}: give a path"),
        ({"program": b"spark-submit"}, "program is b'spark-submit': give a path"),
        ({"java_home": 5}, "java_home is 5: give a path"),
        ({"environment": "A=B"}, "environment is a str"),
        ({"environment": {"A": 5}}, "variable A is a int: give a text"),
        ({"environment": {"A": "secret\0"}}, "variable A is a str: give a text without a NUL$"),
        ({"environment": {"A=": "b"}}, "environment has 'A=' in it"),
    ],
)
def test_what_is_wrong_with_spark_submit_is_named(arguments: dict[str, Any], words: str) -> None:
    """The same."""
    with pytest.raises(ConfigError, match=words):
        SparkSubmit(**arguments)


def test_files_for_spark_submit_may_be_paths() -> None:
    """One, or a list of them; as text or as a `Path`."""
    given = SparkSubmit(py_files=Path("a.zip"), jars=["b.jar", Path("c.jar")])  # type: ignore[arg-type]
    assert given == SparkSubmit(py_files=["a.zip"], jars=["b.jar", "c.jar"])
    assert given.options()[-4:] == ["--py-files", "a.zip", "--jars", "b.jar,c.jar"]


def test_texts_in_the_ledger_stay_what_they_were() -> None:
    """A window that was given as text is stored as one that was given typed."""
    typed = Window(
        ["a"], NOON, Relative(3_600_000), timedelta(minutes=5), since=NOON - timedelta(1)
    )
    texts = Window(
        "a",
        time_text(int(NOON.timestamp()) * 1000),
        "-PT1H",
        "PT5M",
        since=(NOON - timedelta(1)).isoformat(),
    )
    assert texts.to_json() == typed.to_json()
    assert hash(texts) == hash(typed)
