"""``offsets show``, ``before``, ``decode`` and ``encode``, of a Kafka in memory."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.commands.offset_maps import _offsets
from kafka_ordered_ops.cli.show.offsets import _cells, _table
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_map.reading import MetadataKind
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.windows.queries.group_offsets import PartitionOffsets
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.strategies import offset_sets
from tests.support.windows_support import BASE_MS, at

Captured = pytest.CaptureFixture[str]

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def run(capfd: Captured, *words: object, code: int = 0) -> Any:
    """What one command of the group in this process says as JSON."""
    assert main(["offsets", *map(str, words), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def refused(capfd: Captured, *words: object) -> str:
    """What a command says of its wrong usage."""
    return str(run(capfd, *words, code=2)["error"]["message"])


def told(capfd: Captured, *words: object, code: int = 0) -> tuple[str, str]:
    """What a command says to people, on stdout and on stderr."""
    assert main(["offsets", *map(str, words)]) == code
    captured = capfd.readouterr()
    return captured.out, captured.err


def shown(kafka: InMemoryKafka, capfd: Captured, *more: object) -> Any:
    """What `show` says of the group."""
    return run(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP, *more)


def plan(kafka: InMemoryKafka, seconds: float, *, commit: bool, since: float | None = None) -> None:
    """A window of the group; of the whole past, or from a time on."""
    window = Window(
        ["t"],
        at(seconds),
        since=None if since is None else at(since),
        starting_offsets=Earliest(),
    )
    with OrderedWindows(kafka.settings, GROUP) as windows:
        made = windows.plan(window)
        if commit:
            windows.commit(made)


def facts(found: Any, number: int = 0) -> tuple[Any, ...]:
    """One partition's committed offset, lag, done and claimed ranges."""
    one = found["partitions"][number]
    return one["committed"], one["lag"], one["done"], one["claimed"]


# --- show ------------------------------------------------------------------------------------------


def test_of_windows_the_ledger_is_shown(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Done beyond the committed offset, and what open windows hold; partition 0 has the even seconds."""
    plan(kafka, 6, since=4, commit=True)
    plan(kafka, 10, since=8, commit=False)
    found = shown(kafka, capfd)
    assert (found["group"], found["progress_in"], found["lag"]) == (GROUP, "ledger", 8)
    assert facts(found) == (0, 4, [[2, 3]], [[4, 5]])
    first = found["partitions"][0]
    assert (first["log_start"], first["end"], first["metadata"]) == (0, 5, "ours")
    assert first["problem"] is None


def test_of_a_consumer_its_commits_are_shown(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Only partitions on which it has committed; metadata of other programs is named and harmless."""
    kafka.create_topic("other")
    kafka.commit(GROUP, {FIRST: 3}, b"host-1:pid")
    found = shown(kafka, capfd)
    assert (found["progress_in"], found["lag"], len(found["partitions"])) == ("commits", 2, 1)
    assert facts(found) == (3, 2, [[0, 3]], [])
    assert found["partitions"][0]["metadata"] == "other"
    assert shown(kafka, capfd, "-t", "^t.*")["partitions"] == found["partitions"]
    out, err = told(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP)
    assert "group is 2 offsets behind" in err
    assert "not used" not in err
    assert "claimed" not in out.splitlines()[2]


def test_of_parallel_consumer_its_map_is_shown(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Done offsets beyond the committed one; a map past the end of the log is not used, and named."""
    metadata = encode_parallel_consumer_map(1, OffsetSet.of((2, 4)))
    kafka.commit(GROUP, {FIRST: 1}, metadata)
    kafka.commit(GROUP, {SECOND: 4}, encode_parallel_consumer_map(4, OffsetSet.of((5, 100))))
    found = shown(kafka, capfd)
    assert found["partitions"][0]["metadata"] == "parallel-consumer"
    assert facts(found) == (1, 2, [[0, 1], [2, 4]], [])
    assert facts(found, 1) == (4, 1, [[0, 4]], [])
    assert "ends at 5" in found["partitions"][1]["problem"]
    out, err = told(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP)
    assert "the offset map of t[1] is not used" in err
    assert "parallel-consumer" in out


def test_a_committed_offset_past_the_end_is_named(kafka: InMemoryKafka, capfd: Captured) -> None:
    """The group is not simply up to date: it was about another log."""
    kafka.commit(GROUP, {FIRST: 5, SECOND: 6})
    found = shown(kafka, capfd)
    assert [one["problem"] is None for one in found["partitions"]] == [True, False]
    assert "the log ends at 5" in found["partitions"][1]["problem"]
    _, err = told(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP)
    assert "t[1]: offset 6 is committed" in err
    assert "t[0]" not in err


def test_deleted_records_are_neither_done_nor_behind(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Only offsets from the log's start on count."""
    kafka.commit(GROUP, {FIRST: 2})
    kafka.delete_records("t", 0, 4)
    found = shown(kafka, capfd)
    assert facts(found) == (2, 1, [], [])
    assert found["partitions"][0]["log_start"] == 4


def test_the_bar_shows_done_held_and_missing(kafka: InMemoryKafka, capfd: Captured) -> None:
    """A cell for each offset of a short log; and what the cells mean."""
    plan(kafka, 6, since=4, commit=True)
    plan(kafka, 10, since=8, commit=False)
    out, _ = told(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP)
    [line] = [line for line in out.splitlines() if "t[0]" in line]
    assert "░░█░▒" in line
    assert "█ done" in out
    assert "total of 2" in out


@pytest.mark.parametrize("width", [50, 80, 200])
@pytest.mark.parametrize("in_lines", [False, True])
def test_bars_give_way_before_numbers(kafka: InMemoryKafka, width: int, in_lines: bool) -> None:
    """On a terminal of 80 columns no number is cut, and a board has one line for each partition."""
    kafka.commit(GROUP, {FIRST: 1}, encode_parallel_consumer_map(1, OffsetSet.of((2, 4))))
    kafka.commit(GROUP, {SECOND: 4})
    with OrderedWindows(kafka.settings, GROUP) as windows:
        found = windows.offsets()
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(_table(found, 10, str, in_lines=in_lines))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("t[0]" in line for line in lines) == 1
    assert re.search(r"t\[0\] .* 1 +5 +2 +2\b", captured.get())
    # Title, head, two rules, two partitions, the total.
    assert not in_lines or len(lines) == 9


def test_a_topic_that_is_gone_is_named(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Its progress cannot be shown, nor be taken for that on a new topic of the same name."""
    plan(kafka, 4, commit=True)
    kafka.delete_topic("t")
    found = shown(kafka, capfd)
    assert (found["partitions"], found["missing_topics"]) == ([], ["t"])
    assert "topic t is gone" in told(capfd, "show", "-b", kafka.bootstrap, "-g", GROUP)[1]
    kafka.create_topic("t", 2)
    for more in ((), ("-t", "t")):
        found = shown(kafka, capfd, *more)
        assert (found["partitions"], found["missing_topics"]) == ([], ["t"])


def test_an_unknown_group_or_topic_is_wrong_usage(kafka: InMemoryKafka, capfd: Captured) -> None:
    """The group's name is checked by what it has planned or committed."""
    assert "0 characters" in refused(capfd, "show", "-b", kafka.bootstrap, "-g", "")
    where = ["show", "-b", kafka.bootstrap, "-g", GROUP]
    assert "neither planned" in refused(capfd, *where)
    kafka.commit(GROUP, {FIRST: 1})
    kafka.create_topic("other")
    assert "neither planned" in refused(capfd, *where, "-t", "other")
    run(capfd, *where, "-t", "nothing", code=4)


def test_show_changes_nothing(kafka: InMemoryKafka, capfd: Captured) -> None:
    """No ledger is there afterwards, and the commits are the same."""
    kafka.commit(GROUP, {FIRST: 3}, b"x")
    before = kafka.committed(GROUP)
    shown(kafka, capfd)
    assert (kafka.topics(), kafka.committed(GROUP)) == (["t"], before)


def test_watching_needs_a_terminal(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Not a pipe, and not one JSON object."""
    where = ["show", "-b", kafka.bootstrap, "-g", GROUP, "--watch"]
    assert "--json" in refused(capfd, *where)
    assert "needs a terminal" in told(capfd, *where, code=2)[1]


@given(offset_sets, offset_sets, st.integers(0, 60), st.integers(0, 100))
def test_every_cell_of_a_bar_is_what_its_offsets_are(
    done: OffsetSet, held: OffsetSet, start: int, length: int
) -> None:
    """Against the offsets one by one."""
    end, claimed = start + length, held - done
    one = PartitionOffsets(FIRST, start, end, None, done, claimed, MetadataKind.NONE, None)
    cells = _cells(one)
    assert len(cells) == min(30, length)
    for number, (_, letter, _, _) in enumerate(cells):
        low, high = (start + length * (number + n) // len(cells) for n in (0, 1))
        finished = [offset in done for offset in range(low, high)]
        if all(finished):
            wanted = "#"
        elif any(offset in claimed for offset in range(low, high)):
            wanted = "~"
        else:
            wanted = "+" if any(finished) else "."
        assert letter == wanted


@given(st.integers(1, 2**62))
def test_a_bar_of_the_longest_log_is_exact(length: int) -> None:
    """No product exceeds 64 bits."""
    half = OffsetSet.of((0, length // 2))
    one = PartitionOffsets(FIRST, 0, length, None, half, EMPTY_SET, MetadataKind.NONE, None)
    letters = "".join(letter for _, letter, _, _ in _cells(one))
    assert letters == "#" * letters.count("#") + "+" * letters.count("+") + "." * letters.count(".")
    assert letters.count("+") <= 1


# --- before ----------------------------------------------------------------------------------------


def test_offsets_before_a_time_are_listed_newest_first(
    kafka: InMemoryKafka, capfd: Captured
) -> None:
    """The first offset stamped at or after each time; partition 0 has the even seconds."""
    words = ["before", "-b", kafka.bootstrap, "-t", "t", "--time", at(6).isoformat()]
    found = run(capfd, *words, "--every", "PT2S", "-n", 3)
    first = found["partitions"][0]
    assert (first["log_start"], first["end"]) == (0, 5)
    assert [one["offset"] for one in first["offsets"]] == [3, 2, 1]
    assert first["offsets"][0]["time"] == at(6).isoformat().replace("+00:00", "Z")
    out, _ = told(capfd, *words, "--every", "PT2S")
    lines = [line.split() for line in out.splitlines() if "t[0]" in line]
    assert [line[2:] for line in lines] == [["3", "2"], ["2", "3"], ["1", "4"], ["0", "5"]]


def test_before_the_first_record_no_time_is_looked_up(
    kafka: InMemoryKafka, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand steps cost no more than those with records; nor do empty partitions."""
    kafka.create_topic("empty")
    asked, look_up = list[int](), MemoryLookup.first_at_or_after_each

    def counted(self: MemoryLookup, partitions: Any, times: list[int], isolation: Any) -> Any:
        asked.extend(times)
        return look_up(self, partitions, times, isolation)

    monkeypatch.setattr(MemoryLookup, "first_at_or_after_each", counted)
    where = ["-b", kafka.bootstrap, "-t", "t", "-t", "empty", "--time", at(6).isoformat()]
    found = run(capfd, "before", *where, "--every", "PT1S", "-n", 1_000)["partitions"]
    assert [one["offset"] for one in found[1]["offsets"]] == [3, 2, 1, 0]
    assert len(asked) < 100


def test_steps_without_records_add_no_offset(kafka: InMemoryKafka, capfd: Captured) -> None:
    """After the last record the end of the log is listed, once; before the first nothing is."""
    words = ["before", "-b", kafka.bootstrap, "-t", "^t.*", "--time", at(60).isoformat()]
    found = run(capfd, *words, "--every", "PT30S", "-n", 1_000)
    assert [one["offset"] for one in found["partitions"][0]["offsets"]] == [5, 0]
    kafka.create_topic("empty")
    [one] = run(capfd, "before", "-b", kafka.bootstrap, "-t", "empty")["partitions"]
    assert [offset["offset"] for offset in one["offsets"]] == [0]


def test_the_ends_of_a_log_are_listed(kafka: InMemoryKafka, capfd: Captured) -> None:
    """The latest and steps back from the newest record, or the earliest alone; the number is that of offsets."""
    words = ["before", "-b", kafka.bootstrap, "-t", "t", "--every", "PT0.5S"]
    first = run(capfd, *words, "--time", "latest", "-n", 3)["partitions"][0]
    assert [one["offset"] for one in first["offsets"]] == [5, 4, 3]
    assert first["offsets"][0]["time"] is None
    first = run(capfd, *words, "--time", "earliest")["partitions"][0]
    assert first["offsets"] == [{"time": None, "offset": 0}]
    assert "-" in told(capfd, *words, "--time", "earliest")[0]


def test_before_refuses_what_it_cannot_look_up(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Times before 1970, spans that are none, and unknown topics."""
    words = ["before", "-b", kafka.bootstrap, "-t", "t"]
    assert "time" in refused(capfd, *words, "--time", "1969-01-01T00:00:00Z")
    assert "every" in refused(capfd, *words, "--every", "1h")
    assert "every" in refused(capfd, *words, "--every", "PT0S")
    run(capfd, "before", "-b", kafka.bootstrap, "-t", "nothing", code=4)
    # Steps beyond 1970 are left out.
    found = run(capfd, *words, "--time", "1970-01-01T00:00:01Z", "-n", 1_000)
    assert [one["offset"] for one in found["partitions"][0]["offsets"]] == [0]
    assert at(0).timestamp() * 1000 == BASE_MS


# --- decode and encode -----------------------------------------------------------------------------


def test_maps_of_parallel_consumer_are_decoded(capfd: Captured) -> None:
    """From the argument, and from stdin; the base is not in the map."""
    found = run(capfd, "decode", "bgABAAk=", "--base", 100)
    assert found == {
        "metadata": "parallel-consumer",
        "encoding": "RunLength",
        "base": 100,
        "end": 110,
        "done": [[101, 110]],
        "not_done": [[100, 101]],
        "problem": None,
    }
    assert run(capfd, "decode", "bgABAAk=")["done"] == [[1, 10]]
    out, _ = told(capfd, "decode", "bgABAAEAAQK2AAEBKw==", "--base", 3)
    rows = {line[:10].strip(): line[10:] for line in out.splitlines()}
    assert rows["end"] == "1,000 (997 offsets from the base)"
    assert rows["not done"] == "3 in [3, 4) [5, 6) [700, 701)"


@pytest.mark.parametrize(
    ("given", "kind", "end"),
    [(b"bgABAAk=\r\n", "parallel-consumer", 17), (b"", "none", 7), (b"\xff\0", "other", 7)],
)
def test_stdin_is_read_to_the_byte(
    capfd: Captured, monkeypatch: pytest.MonkeyPatch, given: bytes, kind: str, end: int
) -> None:
    """Without the newline of a shell; metadata need not be text."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    found = run(capfd, "decode", "--base", 7)
    assert (found["metadata"], found["end"]) == (kind, end)


def test_maps_of_windows_are_decoded(kafka: InMemoryKafka, capfd: Captured) -> None:
    """They name their base."""
    plan(kafka, 6, since=4, commit=True)
    metadata = kafka.committed(GROUP)[FIRST].metadata.decode()
    found = run(capfd, "decode", metadata)
    assert (found["metadata"], found["base"], found["done"]) == ("ours", 0, [[2, 3]])
    wrong = run(capfd, "decode", metadata, "--base", 7, code=4)
    assert (wrong["done"], "offset 0" in wrong["problem"]) == ([], True)


@pytest.mark.parametrize(
    ("metadata", "kind", "code"),
    [
        ("", "none", 0),
        ("host-1:pid", "other", 0),
        ("meta", "other", 0),
        ("AQ==", "kafka-streams", 0),
        ("bgAA", "parallel-consumer", 0),
        ("bv//", "parallel-consumer", 4),
        ("~koo1:damaged", "ours", 4),
        ("\udcff", "other", 0),
    ],
)
def test_any_metadata_is_explained(capfd: Captured, metadata: str, kind: str, code: int) -> None:
    """What it is; a damaged map is an error with its reason."""
    found = run(capfd, "decode", metadata, code=code)
    assert (found["metadata"], found["done"]) == (kind, [])
    assert bool(found["problem"]) == (kind not in ("none", "parallel-consumer") or code > 0)
    out, err = told(capfd, "decode", metadata, code=code)
    assert out.startswith("metadata")
    assert err == ""


def test_people_see_some_ranges_and_programs_all(capfd: Captured) -> None:
    """A table that nobody reads is cut."""
    offsets = OffsetSet.from_ranges((n, n + 1) for n in range(1, 1_001, 2))
    metadata = encode_parallel_consumer_map(0, offsets).decode()
    out, _ = told(capfd, "decode", metadata)
    assert "and 480 more ranges" in out
    assert len(run(capfd, "decode", metadata)["done"]) == 500


@given(st.integers(0, 2**40), offset_sets)
def test_typed_ranges_are_the_offsets_that_they_name(base: int, done: OffsetSet) -> None:
    """Their ends are excluded, and one offset needs no end."""
    wanted = OffsetSet.from_ranges((base + 1 + start, base + 1 + end) for start, end in done)
    typed = [f"{start}:{end}" for start, end in wanted]
    typed += [str(start) for start, _ in wanted]
    assert _offsets(base, typed) == wanted


def test_done_offsets_are_encoded(capfd: Captured) -> None:
    """One offset, ranges that touch, in any order; decoding gives them back."""
    words = ["encode", "--base", 100, "--done", "105:111", "--done", 120, "--done", "101:105"]
    metadata = run(capfd, *words)["metadata"]
    assert run(capfd, "decode", metadata, "--base", 100)["done"] == [[101, 111], [120, 121]]
    assert told(capfd, *words)[0] == f"{metadata}\n"


@pytest.mark.parametrize("done", ["100", "5:7", "111:101", "101:101", "x", "101-111", "9" * 20, ""])
def test_offsets_that_cannot_be_are_refused(capfd: Captured, done: str) -> None:
    """At or below the base, ranges that are none, and other words."""
    assert f"--done {done}" in refused(capfd, "encode", "--base", 100, "--done", done)


def test_a_map_too_large_for_metadata_is_refused(capfd: Captured) -> None:
    """With its size."""
    words = ["--done", f"5000:{2**40}"]
    error = run(capfd, "encode", "--base", 100, *words, code=4)["error"]
    assert error["type"] == "OffsetMapTooLargeError"
