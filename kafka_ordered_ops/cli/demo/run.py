"""The demo from its first record to its last check."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.cli.demo import folder as folders
from kafka_ordered_ops.cli.demo.check import (
    Attempt,
    BrokerFacts,
    Finding,
    check_attempts,
    check_broker,
    check_published,
)
from kafka_ordered_ops.cli.demo.crash import kill_halfway
from kafka_ordered_ops.cli.demo.data import Flights, read_flights
from kafka_ordered_ops.cli.demo.job import FLIGHTS_FOLDER, run_window, start_spark
from kafka_ordered_ops.cli.demo.output import Published, read_published
from kafka_ordered_ops.cli.demo.picture import draw
from kafka_ordered_ops.cli.demo.report import as_json, finding_lines, window_rows, window_table
from kafka_ordered_ops.cli.demo.story import GROUP, PARTITIONS, TOPIC, Step, Story, Twist
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.embedded.produce import (
    committed_offsets,
    create_topic,
    end_offsets,
    produce,
)
from kafka_ordered_ops.windows import Delivery, OrderedWindows

#: Records of 2013 would be older than any retention by time.
_TOPIC_CONFIG: Final = {"retention.ms": "-1"}


@dataclass(slots=True)
class Demo:
    """One run of the story, with its results so far."""

    story: Story
    flights: Flights
    folder: Path
    screen: Screen
    produced: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    #: By window: the call that did its work.
    seconds: dict[str, float] = field(default_factory=dict)
    #: By window, in the order of the story.
    plans: dict[str, WindowPlan] = field(default_factory=dict)

    def run(self) -> bool:
        """Run every window, show the results, and return whether every check held."""
        with self.screen.progress("starting Kafka"), EmbeddedKafka() as kafka:
            facts = self._run_windows(kafka.bootstrap)
        published = read_published(self.folder / FLIGHTS_FOLDER, self.story)
        with self.screen.progress("checking against the source"):
            findings = [
                *check_published(published, self.flights, self.story),
                *check_broker(facts, self.flights),
                *check_attempts(self.attempts, self.story),
            ]
        self._report(published, findings)
        return all(finding.holds for finding in findings)

    def _run_windows(self, bootstrap: str) -> BrokerFacts:
        create_topic(bootstrap, TOPIC, partitions=PARTITIONS, config=_TOPIC_CONFIG)
        self.screen.phase("starting Spark")
        with (
            _stopped(start_spark()) as spark,
            OrderedWindows({"bootstrap.servers": bootstrap}, GROUP) as windows,
        ):
            ends = self.story.produced_up_to(self.flights)
            for step, end in zip(self.story.steps, ends, strict=True):
                self._produce_up_to(bootstrap, end)
                if step.twist is Twist.KILLED:
                    self._kill(bootstrap, windows, step)
                self._run(spark, windows, step)
                if step.twist is Twist.TWICE:
                    self._run(spark, windows, step)
        return BrokerFacts(
            ends=end_offsets(bootstrap, TOPIC),
            committed=committed_offsets(bootstrap, GROUP, TOPIC),
        )

    def _produce_up_to(self, bootstrap: str, end: int) -> None:
        """Let the next flights depart."""
        total = end - self.produced
        self.screen.phase(f"producing {total:,} departures", "records")
        batch = self.flights.slice(self.produced, end)
        records = ((TOPIC, key, value, stamp) for key, value, stamp in batch.records())
        produce(bootstrap, records, progress=lambda done: self.screen.report(done, total))
        self.produced = end

    def _kill(self, bootstrap: str, windows: OrderedWindows, step: Step) -> None:
        self.screen.phase(f"window {step.window_id}: a process that will be killed")
        started = time.monotonic()
        file_count = kill_halfway(
            bootstrap, step, self.folder, self.folder / folders.CRASH_LOG_NAME
        )
        self.screen.say(
            f"{step.window_id}: killed (SIGKILL) after {time.monotonic() - started:.1f} s, halfway: "
            f"{file_count} {'file' if file_count == 1 else 'files'} in its hidden stage, and its status is "
            f"{windows.show(step.window_id).status}"
        )

    def _run(self, spark: Any, windows: OrderedWindows, step: Step) -> None:
        started = time.monotonic()
        delivery = run_window(
            spark,
            windows,
            step,
            self.folder,
            lambda what: self.screen.phase(f"window {step.window_id}: {what}"),
        )
        elapsed_s = time.monotonic() - started
        plan = self.plans[step.window_id] = delivery.plan
        self.attempts.append(Attempt(step.window_id, plan.attempt, plan.status.value, delivery.ran))
        if delivery.ran:
            self.seconds[step.window_id] = elapsed_s
        self.screen.say(f"{step.window_id}: {_outcome(delivery)}, {elapsed_s:.1f} s")

    def _report(self, published: Published, findings: list[Finding]) -> None:
        picture = self.folder / folders.PICTURE_NAME
        with self.screen.progress("drawing"):
            draw(published, self.story, list(self.plans.values()), picture)
        rows = window_rows(self.story, published, self.attempts, self.seconds)
        report = self.folder / folders.REPORT_NAME
        report.write_text(json.dumps(as_json(rows, findings), indent=2) + "\n", encoding="utf-8")
        self.screen.show(window_table(rows))
        self.screen.show("\nChecked against the source file:", *finding_lines(findings))
        self.screen.show(f"\nFlights, delays and report: {self.folder}", f"Picture: {picture}")


def run_story(story: Story, output: Path, screen: Screen) -> bool:
    """Run a story into a folder; return whether every check held."""
    folder = folders.prepare_folder(output)
    with screen.progress("reading the source"):
        flights = story.reached(read_flights())
    return Demo(story, flights, folder, screen).run()


def _outcome(delivery: Delivery) -> str:
    if not delivery.ran:
        return f"{delivery.plan.status} already; nothing was done"
    facts = delivery.record.result or {}
    records = (facts.get("facts") or {}).get("records")
    count = "" if records is None else f"{records:,} records, "
    attempt = delivery.plan.attempt
    return f"{count}{delivery.plan.status}" + (f" by attempt {attempt}" if attempt > 1 else "")


@contextmanager
def _stopped(spark: Any) -> Iterator[Any]:
    try:
        yield spark
    finally:
        spark.stop()
