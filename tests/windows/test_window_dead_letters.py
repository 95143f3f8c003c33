"""Records that cannot be decoded, in a topic of their own: each once, whatever happens around the commit."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kafka_ordered_ops import (
    Application,
    CommitUnknownError,
    ConfigError,
    Earliest,
    OrderedWindows,
    RecordsLostError,
    RecordTooLargeError,
    RegistryError,
    UnknownTopicError,
    Window,
    cli,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.decoding import DeadLetter
from kafka_ordered_ops.kafka.ledger import transaction
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows as Service
from kafka_ordered_ops.windows.values import dead_letters as letters_of_windows
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.dead_letters import BAD, JSON, die_at_commit, fill, ids, places, service, window
from tests.support.windows_support import BASE_MS, at
from tests.support.worlds import World


@dataclasses.dataclass
class OwnSink:
    """A sink of another program: the number of rows, shown by name."""

    shown: dict[str, int] = dataclasses.field(default_factory=dict)
    fails: bool = False

    def write(self, result: Any, plan: Any) -> OwnOutput:
        """Stages a number."""
        return OwnOutput(self, plan.window_id, result.num_rows)

    def found(self, result: Any) -> OwnOutput:
        """Knows its own JSON, and nothing else."""
        assert result.keys() == {"window_id", "rows"}
        return OwnOutput(self, **result)


@dataclasses.dataclass(frozen=True)
class OwnOutput:
    """What it has staged."""

    sink: OwnSink
    window_id: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return what another process needs."""
        return {"window_id": self.window_id, "rows": self.rows}

    def publish(self) -> None:
        """Shows the number, unless the sink fails."""
        if self.sink.fails:
            raise OSError("the sink is away")
        self.sink.shown[self.window_id] = self.rows

    def publish_with(self, outputs: Any) -> list[Any]:
        """Knows its own outputs alone."""
        return [output for output in outputs if isinstance(output, OwnOutput)]

    def discard(self) -> None:
        """Does nothing."""


def test_bad_records_are_written_as_they_were(world: World, tmp_path: Path) -> None:
    """With the bytes, the headers and the time that they had, and where and why; the window has the others."""
    fill(world)
    result = service(world).run(window(world), tmp_path / "lake", window_id="w")
    assert result.records == 4
    assert sorted(ids(tmp_path / "lake"), key=str) == [1, 1, 6, None]
    first, second, third = sorted(world.stored("bad"), key=lambda row: row["timestamp"])
    assert [(row["key"], row["value"]) for row in (first, second, third)] == [
        (b'{"id": 2}', b"{"),
        (b"nothing", b'{"id": 3}'),
        (b"nothing", b"nothing"),
    ]
    assert first["timestamp"].timestamp() * 1_000 == BASE_MS + 2_000
    headers = [(header["key"], header["value"]) for header in first["headers"]]
    assert headers[:3] == [("h", b"1"), ("h", None), ("", b"")]
    facts = dict(headers[3:])
    assert facts.pop("koo.error").startswith(b"the value cannot be decoded: ")
    assert facts == {
        "koo.topic": world.named("orders").encode(),
        "koo.partition": b"0",
        "koo.offset": b"1",
        "koo.timestamp_ms": str(BASE_MS + 2_000).encode(),
        "koo.group": world.named("g").encode(),
        "koo.window_id": b"w",
        "koo.error_type": b"DecodeError",
    }
    reasons = [dict(_pairs(row))["koo.error"].decode() for row in (second, third)]
    assert [(text.count("the key cannot"), text.count("the value cannot")) for text in reasons] == [
        (1, 0),
        (1, 1),
    ]


def _pairs(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(header["key"], header["value"]) for header in row["headers"]]


def test_a_replay_and_a_second_run_write_none_again(world: World, tmp_path: Path) -> None:
    """The window is committed once; its records are left out again."""
    fill(world)
    windows = service(world)
    windows.run(window(world), tmp_path / "lake", window_id="w")
    assert windows.run(window(world), tmp_path / "lake", window_id="w").outcome.startswith(
        "already"
    )
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.replay("w")
        steps.commit(plan, stage_window(plan, world.settings, tmp_path / "again"))
    assert places(world) == BAD
    assert len(ids(tmp_path / "again")) == 4


def test_a_retry_that_only_commits_writes_them(world: World, tmp_path: Path) -> None:
    """The places are in the ledger with the output, also when the retry would keep bad records."""
    fill(world)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(window(world), "w")
        staged = stage_window(plan, world.settings, tmp_path / "lake")
        steps.mark_written(plan, staged.to_json())
    assert places(world) == []
    result = service(world).run(window(world, on_bad="keep"), tmp_path / "lake", window_id="w")
    assert (result.records, places(world)) == (4, BAD)


def test_what_was_kept_is_no_dead_letter(world: World, tmp_path: Path) -> None:
    """An output that an earlier attempt wrote with the bad records has them, whatever is asked for since."""
    fill(world)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(window(world, on_bad="keep"), "w")
        staged = stage_window(plan, world.settings, tmp_path / "lake")
        steps.mark_written(plan, staged.to_json())
    result = service(world).run(window(world), tmp_path / "lake", window_id="w")
    assert (result.records, places(world)) == (7, [])


def test_windows_committed_together_each_have_theirs(world: World, tmp_path: Path) -> None:
    """One transaction for both windows, and for the dead letters of both."""
    fill(world)
    with Service(world.settings, world.named("g")) as steps:
        plans = steps.plan_many([window(world, 2.5), window(world)], ["early", "late"])
        staged = stage_windows(plans, world.settings, tmp_path)
        assert [output.facts["dead_letters"] for output in staged] == [1, 2]
        steps.commit_many(plans, staged)
    owners = [dict(_pairs(row))["koo.window_id"] for row in world.stored("bad")]
    assert sorted(owners) == [b"early", b"late", b"late"]
    assert places(world) == BAD


def test_a_function_reads_only_good_records(world: World) -> None:
    """Each read leaves out the same; the commit writes them once."""
    fill(world)
    windows = service(world)
    with windows.open(window(world), window_id="w") as open_window:
        assert open_window.to_arrow().num_rows == 4
        assert sum(batch.num_rows for batch in open_window.to_batches(ordered=False)) == 4
    assert places(world) == BAD
    record = windows.show("w")
    assert record.result is not None
    assert record.result["reported"]["facts"]["records"] == 4
    assert len(record.result["dead_letters"]["records"]) == 3


def test_a_function_that_has_not_read_everything_commits_nothing(world: World) -> None:
    """Nobody knows which of the other records are bad."""
    fill(world)
    windows = service(world)

    def looks(open_window: Any) -> None:
        next(open_window.to_batches())

    with pytest.raises(ConfigError, match="not read to their end"):
        windows.run(window(world), job=looks, window_id="w")
    assert [record.status for record in windows.list()] == ["planned"]
    assert places(world) == []


def test_a_commit_without_a_report_is_refused(world: World) -> None:
    """Whoever has read the window some other way may have left records out, or not."""
    fill(world)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(window(world), "w")
        with pytest.raises(ConfigError, match="does not say which records"):
            steps.commit(plan)
        with pytest.raises(ConfigError, match="does not say which records"):
            steps.mark_written(plan, {"rows": 4})
        with pytest.raises(ConfigError, match="a part of a window"):
            steps.split(plan, 2)
        assert [record.status for record in steps.list()] == ["planned"]


def test_a_job_that_runs_again_reports_again(memory: World, tmp_path: Path) -> None:
    """The output of a written window is gone: what the next job has left out is not what the first one had."""
    fill(memory)
    with Service(memory.settings, memory.named("g")) as steps:
        plan = steps.plan(window(memory), "w")
        steps.mark_written(plan, stage_window(plan, memory.settings, tmp_path).to_json())
        again = steps.plan(window(memory), "w")
        assert again.status is WindowStatus.WRITTEN
        with pytest.raises(ConfigError, match="does not say which records"):
            steps.mark_written(again, {"rows": 4})
        steps.commit(again, stage_window(again, memory.settings, tmp_path))
    assert places(memory) == BAD


@pytest.mark.parametrize(
    ("topic", "error"), [("absent", UnknownTopicError), ("orders", ConfigError)]
)
def test_a_topic_that_cannot_be_used_is_refused_before_a_window_is_planned(
    world: World, topic: str, error: type[Exception]
) -> None:
    """One that does not exist is not created."""
    fill(world)
    windows = service(world)
    with pytest.raises(error, match=world.named(topic)):
        windows.plan(window(world, on_bad=f"dead_letter:{world.named(topic)}"), "w")
    assert windows.list() == []


def test_a_topic_that_a_pattern_of_the_window_matches_is_refused(memory: World) -> None:
    """The next window would read its own dead letters."""
    fill(memory)
    question = Window("^.*", at(100), starting_offsets=Earliest(), values=JSON)
    windows = service(memory)
    with pytest.raises(ConfigError, match="one of the topics of the window"):
        windows.plan(dataclasses.replace(question, on_bad=DeadLetter(memory.named("bad"))), "w")
    assert windows.list() == []


def test_a_record_that_clients_would_change_stops_the_commit(memory: World, tmp_path: Path) -> None:
    """They cut the name of a header at a NUL: the record would not be what it was."""
    fill(memory)
    memory.write_content("orders", 0, [(7, None, b"{", (("a\0b", b""),))])
    windows = service(memory)
    with pytest.raises(ConfigError, match=r"\[0\] at offset 6 cannot be written to .* as it is"):
        windows.run(window(memory), tmp_path / "lake", window_id="w")
    assert places(memory) == []
    windows.run(window(memory, on_bad="keep"), tmp_path / "lake", window_id="w")
    assert len(ids(tmp_path / "lake")) == 8


@pytest.mark.slow
def test_the_command_line_writes_them(
    broker: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the text of the setting."""
    fill(broker)
    orders, group_id, bad = (broker.named(name) for name in ("orders", "g", "bad"))
    options = f"-t {orders} -b {broker.settings.bootstrap_servers} -g {group_id} --starting-offsets earliest --engine local"
    given = {
        "--cutoff": at(100).isoformat(),
        "--output": str(tmp_path / "lake"),
        "--values": "json:id int64",
        "--keys": "json:id int64",
        "--on-bad": f"dead_letter:{bad}",
    }
    arguments = ["run", *options.split(), *itertools.chain.from_iterable(given.items())]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    assert places(broker) == BAD


def test_the_ledger_takes_no_dead_letters(memory: World) -> None:
    """A record of somebody else in it would damage it."""
    fill(memory)
    with (
        Service(memory.settings, "g", ledger_topic="plans") as steps,
        pytest.raises(ConfigError, match="plans is the ledger"),
    ):
        steps.plan(window(memory, on_bad="dead_letter:plans"), "w")


def test_a_record_that_the_topic_does_not_take_stops_the_commit(
    world: World, tmp_path: Path
) -> None:
    """By an error that names it: neither the window nor another dead letter is committed."""
    fill(world)
    world.create("small", max_message_bytes="120")
    windows = service(world)
    small = window(world, on_bad=f"dead_letter:{world.named('small')}")
    with pytest.raises(RecordTooLargeError, match="small"):
        windows.run(small, tmp_path / "lake", window_id="w")
    assert world.stored("small") == []
    assert not windows.show("w").status.is_done


def test_a_topic_that_is_deleted_before_the_commit_stops_it(world: World, tmp_path: Path) -> None:
    """At once, and not after the time limit of the ledger."""
    fill(world)
    with Service(world.settings, world.named("g"), timeout_s=60) as steps:
        plan = steps.plan(window(world), "w")
        staged = stage_window(plan, world.settings, tmp_path)
        world.delete("bad")
        began = time.monotonic()
        with pytest.raises(UnknownTopicError, match=world.named("bad")):
            steps.commit(plan, staged)
        assert time.monotonic() - began < 20
        assert not steps.show("w").status.is_done


def test_an_application_without_an_output_is_refused(memory: World) -> None:
    """The JSON that it reports is its own: before a window is planned."""
    fill(memory)
    windows = service(memory)
    with pytest.raises(ConfigError, match="cannot report which records"):
        windows.run(window(memory), job=Application("job.py"))
    assert windows.list() == []


def test_a_sink_of_another_program_has_the_good_records(world: World) -> None:
    """Its JSON is its own; what was left out is beside it in the ledger, also for the run that publishes later."""
    fill(world)
    windows, sink = service(world), OwnSink(fails=True)

    def job(opened: Any) -> None:
        opened.write(opened.to_arrow())

    with pytest.raises(OSError, match="is away"):
        windows.run(window(world), sink, job=job, window_id="w")
    assert places(world) == BAD
    sink.fails = False
    result = windows.run(window(world), sink, job=job, window_id="w")
    assert (sink.shown, result.dead_letters, places(world)) == ({"w": 4}, 3, BAD)


def test_records_that_are_gone_stop_the_commit(world: World, tmp_path: Path) -> None:
    """Retention may remove them between the job and a later commit: none is lost silently."""
    fill(world)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(window(world), "w")
        staged = stage_window(plan, world.settings, tmp_path)
        world.delete_before("orders", 0, 3)
        with pytest.raises(RecordsLostError):
            steps.commit(plan, staged)
        assert not steps.show("w").status.is_done
    assert places(world) == []


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("read_back", [True, False])
def test_a_commit_without_an_answer_writes_them_once_model(
    tmp_path: Path, stored: bool, read_back: bool
) -> None:
    """Whether it was stored, and whether the process finds out."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.create_topic("bad")
        for value in (b'{"id": 1}', b"{"):
            kafka.produce("orders", timestamp_ms=1_000, value=value)
        windows = OrderedWindows(kafka.settings, "g")
        question = Window(
            "orders",
            cutoff="1970-01-02T00:00:00Z",
            starting_offsets="earliest",
            values=JSON,
            on_bad="dead_letter:bad",
        )
        with Service(kafka.settings, "g") as steps:
            plan = steps.plan(question, "w")
            staged = stage_window(plan, kafka.settings, tmp_path / "lake")
            with kafka.lose_answers(stored=stored, read_back=read_back):
                if read_back:
                    steps.commit(plan, staged)
                else:
                    with pytest.raises(CommitUnknownError):
                        steps.commit(plan, staged)
        windows.run(question, tmp_path / "lake", window_id="w")
        assert [record.value for record in kafka.records("bad")] == [b"{"]
        assert ids(tmp_path / "lake") == [1]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fatal", [pytest.param(2, id="commit"), pytest.param(3, id="publish")])
def test_a_kill_at_the_commit_leaves_each_dead_letter_once(
    broker: World, tmp_path: Path, when: str, fatal: int
) -> None:
    """Before it is committed, and after; the next run completes the window."""
    fill(broker)
    die_at_commit(broker, tmp_path / "lake", when, fatal)
    service(broker).run(window(broker), tmp_path / "lake", window_id="w")
    assert places(broker) == BAD
    assert sorted(ids(tmp_path / "lake"), key=str) == [1, 1, 6, None]


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_writes_them_once(
    broker: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """The commit times out, stored or not; the same call finds out."""
    fill(broker)
    calls: list[int] = []

    class Producer(confluent_kafka.Producer):
        def commit_transaction(self, *args: Any) -> None:
            calls.append(len(calls))
            if len(calls) != 2 or stored:
                super().commit_transaction(*args)
            if len(calls) == 2:
                timed_out = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
                raise confluent_kafka.KafkaException(timed_out)

    monkeypatch.setattr(transaction, "Producer", Producer)
    service(broker).run(window(broker), tmp_path / "lake", window_id="w")
    assert len(calls) >= 3
    assert places(broker) == BAD
    assert len(ids(tmp_path / "lake")) == 4


def test_the_records_are_read_once(
    memory: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the commit is decided twice: the first decision learns which records to read, outside the fence."""
    fill(memory)
    reads: list[int] = []
    read = letters_of_windows.read_letters

    def counting(*args: Any, **options: Any) -> Any:
        reads.append(len(args))
        return read(*args, **options)

    monkeypatch.setattr(letters_of_windows, "read_letters", counting)
    service(memory).run(window(memory), tmp_path / "lake", window_id="w")
    assert (len(reads), places(memory)) == (1, BAD)


def test_reads_that_leave_out_different_records_stop_the_window(memory: World) -> None:
    """As when a schema is registered in between: a record would be in the output, and a dead letter as well."""
    fill(memory)
    windows = service(memory)

    def job(opened: Any) -> None:
        opened.to_arrow()
        [letters] = opened.windows.dead_letters
        opened.windows.dead_letters = [dataclasses.replace(letters, records=letters.records[:2])]
        opened.to_arrow()

    with pytest.raises(RegistryError, match="different records"):
        windows.run(window(memory), job=job, window_id="w")
    assert places(memory) == []
