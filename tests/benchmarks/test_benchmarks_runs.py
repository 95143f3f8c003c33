"""How the benchmarks measure: turns, what is kept, what processes use; and whole runs at the smallest scale."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import planning
from benchmarks.__main__ import main
from benchmarks.backlog import DAY_START, topic_of
from benchmarks.journal import Journal
from benchmarks.processes import ContenderFailedError
from benchmarks.publishing import Publish, Target
from benchmarks.results import read_results
from benchmarks.rounds import measure, rounds_of, steps_in_all
from benchmarks.usage import CpuTally, Meter, Process
from benchmarks.values import Comparison, Contender, Outcome, Place, Work
from kafka_ordered_ops.core.times import time_ms
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.bench_support import FACTS, measured

#: Whether this system tells what processes use.
TOLD = Path("/proc/self/stat").exists()


class Nothing:
    """A job that does nothing."""

    def start(self, place: Place) -> Work:
        return Work(lambda round_: Outcome(seconds=1.0 + round_, records=7))


class Burner(Nothing):
    """A job whose child burns the CPU, holds memory, and ends."""

    def start(self, place: Place) -> Work:
        code = "import time\nkept = b'x' * 100_000_000\nwhile time.process_time() < 1.0: pass"

        def run(_: int) -> Outcome:
            subprocess.run([sys.executable, "-c", code], check=True)
            return Outcome(seconds=1.0, records=7)

        return Work(run)


class Failing(Nothing):
    """A job that fails in its second round, or ends its process there."""

    def __init__(self, *, ends: bool = False) -> None:
        self.ends = ends

    def start(self, place: Place) -> Work:
        def run(round_: int) -> Outcome:
            if round_ == 2:
                if self.ends:
                    os.write(2, b"so long")
                    os._exit(3)
                raise ValueError("no second round")
            return Outcome(seconds=1.0, records=7)

        return Work(run)


class Other(Nothing):
    """A job that delivers something else."""

    def start(self, place: Place) -> Work:
        return Work(lambda _: Outcome(seconds=1.0, records=8))


def _nothing(place: Place) -> None:
    pass


ROUNDS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(1, 4)), st.booleans()), min_size=1, max_size=4
)


@given(ROUNDS, st.integers(1, 5))
def test_rounds_interleave(asked: list[tuple[int | None, bool]], repeats: int) -> None:
    """Every contender has its rounds, at most `repeats`, each round once, all in the same order."""
    contenders = [
        Contender(f"c{n}", 1, Nothing(), rounds, warms_up)
        for n, (rounds, warms_up) in enumerate(asked)
    ]
    rounds = list(rounds_of(contenders, repeats))
    for steps in rounds:
        assert len({step.round for step in steps}) == 1
        names = [step.contender.name for step in steps]
        assert names == sorted(set(names))
    numbers = [steps[0].round for steps in rounds]
    assert all(one < other for one, other in pairwise(numbers))
    for one in contenders:
        mine = [step.round for steps in rounds for step in steps if step.contender is one]
        counted = repeats if one.rounds is None else min(repeats, one.rounds)
        assert mine == list(range(0 if one.warms_up else 1, counted + 1))
    comparison = Comparison("any", tuple(contenders), _nothing)
    assert steps_in_all(comparison, repeats) == sum(map(len, rounds))


def _measure(
    tmp_path: Path, contenders: Sequence[Contender], journal: Journal, *, repeats: int = 2
) -> list[str]:
    """Runs a comparison of these; what was run, in order."""
    comparison = Comparison("any", tuple(contenders), _nothing)
    ran: list[str] = []
    measure(
        comparison,
        journal,
        Place("nowhere", tmp_path / "work"),
        repeats=repeats,
        report=lambda _, step, made: (
            ran.append(f"{step.contender.name}{step.round}") if made is None else None
        ),
    )
    return ran


@pytest.mark.long
def test_contenders_take_turns_and_a_complete_journal_needs_no_run(tmp_path: Path) -> None:
    """A B C A B C; what the file keeps is what was measured; a second call runs nothing."""
    journal = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    contenders = [Contender("a", 1, Nothing()), Contender("b", 1, Nothing(), rounds=1)]
    assert _measure(tmp_path, contenders, journal) == ["a0", "b0", "a1", "b1", "a2"]
    again = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    assert again.of("any") == journal.of("any")
    assert [one.seconds for one in again.of("any") if one.contender == "a"] == [1.0, 2.0, 3.0]
    assert _measure(tmp_path, contenders, again) == []


@pytest.mark.long
def test_an_interrupted_run_goes_on_with_whole_rounds(tmp_path: Path) -> None:
    """A round that was cut off is recreated by all, in new processes that are warmed up first."""
    path = tmp_path / "j.jsonl"
    contenders = [Contender("a", 1, Nothing()), Contender("b", 1, Nothing())]
    _measure(tmp_path, contenders, Journal(path, FACTS.to_json()))
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 6
    # The last line is cut in the middle: round 2 has only its first contender.
    path.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    journal = Journal(path, FACTS.to_json())
    assert len(journal) == 5
    assert _measure(tmp_path, contenders, journal) == ["a0", "b0", "a2", "b2"]
    assert len(Journal(path, FACTS.to_json())) == 6


def test_what_is_complete_is_forgotten(tmp_path: Path) -> None:
    """Asked for again, a comparison is measured again; an unfinished one goes on."""
    path = tmp_path / "j.jsonl"
    journal = Journal(path, FACTS.to_json())
    journal.add(measured("a", 1, 1.0))
    journal.add(replace(measured("a", 1, 1.0), comparison="growth"))
    journal.forget(["window"])
    assert [one.comparison for one in journal.of("growth")] == ["growth"]
    assert len(Journal(path, FACTS.to_json())) == 1


def test_another_run_keeps_nothing_of_this_one(tmp_path: Path) -> None:
    """Numbers of another scale, environment or code are not mixed with these."""
    path = tmp_path / "j.jsonl"
    Journal(path, FACTS.to_json()).add(measured("a", 1, 1.0))
    assert len(Journal(path, FACTS.to_json())) == 1
    assert len(Journal(path, replace(FACTS, code="1" * 12).to_json())) == 0


@pytest.mark.long
def test_what_children_used_counts(tmp_path: Path) -> None:
    """CPU seconds and memory of a child that has come and gone are in the measurement of its parent."""
    journal = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    _measure(tmp_path, [Contender("burner", 1, Burner())], journal, repeats=1)
    for one in journal.of("any"):
        if not TOLD:
            assert (one.cpu_s, one.memory_bytes) == (None, None)
            continue
        assert one.cpu_s is not None
        assert one.memory_bytes is not None
        assert one.cpu_s >= 0.9
        assert one.memory_bytes >= 100_000_000


def test_a_meter_sees_its_own_process(tmp_path: Path) -> None:
    """The tree's CPU time rises, and its memory is there."""
    meter = Meter(os.getpid())
    if not TOLD:
        with meter.running():
            assert meter.memory_bytes is None
        return
    before, began = time.process_time(), time.monotonic()
    with meter.running():
        while time.process_time() < before + 0.2:
            pass
    assert meter.cpu_s is not None
    # The process may have children, such as the broker of other tests.
    assert 0.15 <= meter.cpu_s <= (time.monotonic() - began) * (os.cpu_count() or 1) + 0.05
    assert meter.memory_bytes is not None
    assert meter.memory_bytes > 1_000_000


PARENT = Process(pid=1, parent=0, began=5, own_s=3.0, waited_s=10.0)
CHILD = Process(pid=2, parent=1, began=6, own_s=4.0, waited_s=0.0)


@pytest.mark.parametrize(
    ("looks", "used_s"),
    [
        pytest.param([[PARENT, CHILD]], 0.0, id="nothing"),
        pytest.param([[replace(PARENT, own_s=3.5), replace(CHILD, own_s=5.0)]], 1.5, id="both"),
        pytest.param(
            [[PARENT, replace(CHILD, own_s=5.0)], [PARENT]], 1.0, id="ended, not waited for"
        ),
        pytest.param(
            [[PARENT, replace(CHILD, own_s=5.0)], [replace(PARENT, waited_s=15.25)]],
            1.25,
            id="ended, and waited for",
        ),
        pytest.param([[replace(PARENT, waited_s=12.0), CHILD]], 2.0, id="never seen"),
        pytest.param(
            [[PARENT, CHILD, replace(CHILD, began=7, own_s=1.0)], [PARENT, CHILD]],
            1.0,
            id="the same number anew",
        ),
    ],
)
def test_cpu_time_of_children_counts_once(looks: list[list[Process]], used_s: float) -> None:
    """Whether their parent waits for them or not, and however long they had run before."""
    tally = CpuTally([PARENT, CHILD])
    for tree in looks:
        tally.look(tree)
    assert tally.cpu_s == pytest.approx(used_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "words"),
    [(Failing(), "no second round"), (Failing(ends=True), "status 3.*so long")],
)
def test_a_failure_is_reported_with_its_words(tmp_path: Path, job: Failing, words: str) -> None:
    """What the contender's process said comes along; the rounds before it are kept."""
    journal = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    with pytest.raises(ContenderFailedError, match=rf"(?s)any/failing at 1 .*{words}"):
        _measure(tmp_path, [Contender("failing", 1, job)], journal)
    assert [one.round for one in journal.of("any")] == [0, 1]


class CutOff(Nothing):
    """A job that took too long, with less to show for it."""

    def start(self, place: Place) -> Work:
        return Work(lambda _: Outcome(seconds=60.0, records=3, is_complete=False))


@pytest.mark.long
def test_a_contender_that_was_cut_off_need_not_deliver_the_same(tmp_path: Path) -> None:
    """The others are still held against one another; what it did is kept."""
    journal = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    contenders = [Contender("a", 1, Nothing()), Contender("b", 1, CutOff())]
    assert _measure(tmp_path, contenders, journal, repeats=1) == ["a0", "b0", "a1", "b1"]
    kept = Journal(tmp_path / "j.jsonl", FACTS.to_json()).of("any")
    assert [(one.contender, one.records, one.is_complete) for one in kept][-2:] == [
        ("a", 7, True),
        ("b", 3, False),
    ]


@pytest.mark.long
def test_contenders_must_deliver_the_same(tmp_path: Path) -> None:
    """A ratio between different work would mean nothing."""
    journal = Journal(tmp_path / "j.jsonl", FACTS.to_json())
    with pytest.raises(ContenderFailedError, match=r"did not deliver the same.*'a': 7.*'b': 8"):
        _measure(tmp_path, [Contender("a", 1, Nothing()), Contender("b", 1, Other())], journal)
    assert len(journal) == 0


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.long
def test_planning_is_measured_cold_and_warm(tmp_path: Path) -> None:
    """On a broker of its own, with old windows in the ledger; without Spark."""
    asked = ["--only", "planning", "--scale", "smoke", "--repeats", "1"]
    assert main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    [kept] = read_results(tmp_path / "out").values()
    assert {one.contender for one in kept.measurements} == {
        "cold",
        "warm",
        "cold, old windows",
        "warm, old windows",
    }
    assert all(one.records > 0 for one in kept.measurements)
    assert all(set(one.beyond_s) == {"plan", "commit"} for one in kept.measurements)


def test_cold_and_warm_never_take_the_same_hour() -> None:
    """They work for the same group."""
    hours = [planning.hour_of(n, cold=cold) for n in range(6) for cold in (True, False)]
    assert sorted(hours) == list(range(12))


@pytest.mark.spark41
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("name", ["window", "hourly", "tables"])
def test_spark_is_measured_against_the_connector(tmp_path: Path, name: str) -> None:
    """Every contender delivers all records at the smallest scale, and the page is made.

    The other comparisons have the same jobs with other arguments.
    """
    asked = ["--only", name, "--scale", "smoke", "--repeats", "1"]
    assert main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    [kept] = read_results(tmp_path / "out").values()
    assert all(one.records == one.size for one in kept.measurements)
    assert (tmp_path / "out" / f"{name}.svg").exists() is (name != "tables")


@pytest.mark.parametrize(
    "target",
    [
        Target.FOLDER,
        *(pytest.param(one, marks=pytest.mark.long) for one in (Target.S3, Target.HDFS)),
    ],
    ids=str,
)
def test_what_publishing_adds_is_measured(tmp_path: Path, target: Target) -> None:
    """Apart from the job and from the commit; every record is published, in every round."""
    with InMemoryKafka() as kafka:
        kafka.create_topic(topic_of(20))
        for n in range(20):
            stamp = time_ms(DAY_START, what="start") + n
            kafka.produce(topic_of(20), value=b"v", timestamp_ms=stamp)
        bootstrap = kafka.settings["bootstrap.servers"]
        work = Publish(20, target).start(Place(bootstrap, tmp_path))
        for round_ in (1, 2):
            made = work.run(round_)
            assert made.records == 20
            assert set(made.beyond_s) == {"commit", "publish"}
            assert made.beyond_s["publish"] > 0
