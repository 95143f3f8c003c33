"""How a window's records get into files: the engines, and the way back to what an earlier try wrote.

Spark's objects are `Any` here: only the room `spark` knows pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.staged_output import StagedOutput
from kafka_ordered_ops.spark.job_checks import (
    check_output,
    check_reading,
    check_session,
    check_writable,
)

#: How often Spark is asked how many tasks are done.
_TASKS_INTERVAL_S: Final = 0.2

#: As Spark itself decides which values it masks.
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)

Write = Callable[[Sequence[WindowPlan]], Sequence[StagedOutput]]


class Engine(StrEnum):
    """Who reads Kafka: Spark's tasks, by Python or by its own connector, or this process alone, without Spark."""

    PYTHON = "python"
    CONNECTOR = "connector"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where the records go, and how."""

    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="DIR", help="Folder that gets window_id=<id>/ with Parquet files."
        ),
    ]
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="python: Spark in this process. jvm: the same, by Spark's Kafka connector. stage: no Spark; fits memory.",
        ),
    ] = Engine.PYTHON
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered/--unordered", help="Total order by time over all files, or as it comes."
        ),
    ] = True
    spark_conf: Annotated[
        list[str],
        typer.Option(
            "--spark-conf", metavar="KEY=VALUE", help="A setting of Spark's (repeatable)."
        ),
    ] = field(default_factory=list)

    def check(self, settings: ClientSettings, group_id: str) -> None:
        """Raises `ConfigError` for a job that cannot run, before its windows are planned."""
        conf = self.conf()
        check_output(self.output)
        if self.engine is Engine.LOCAL:
            if conf:
                raise ConfigError("--spark-conf with --engine local: there is no Spark to be set")
        else:
            try:
                check_session(conf, java_home=bundled_java())
            except ConfigError as error:
                raise type(error)(
                    f"{error}. Or use --engine local, which needs no Spark"
                ) from error
            check_reading(self.engine.value, settings, conf=conf, group_id=group_id)
        check_writable(self.output)

    def conf(self) -> dict[str, str]:
        """The settings of --spark-conf; raises `ConfigError`."""
        conf = dict[str, str]()
        for number, text in enumerate(self.spark_conf, start=1):
            key, sign, value = text.partition("=")
            if not sign or not key.startswith("spark."):
                # Without the text: it may be a secret whose key was forgotten.
                raise ConfigError(f"--spark-conf number {number} is not spark.KEY=VALUE")
            conf[key] = value
        return conf

    def writer(self, settings: ClientSettings, screen: Screen) -> Write:
        """What reads plans in one pass and writes each into its hidden stage."""
        screen.hide(value for key, value in self.conf().items() if _SECRET.search(key) and value)

        def write(plans: Sequence[WindowPlan]) -> Sequence[StagedOutput]:
            staged = self._stage(plans, settings, screen)
            screen.phase("committing")
            return staged

        return write

    def _stage(
        self, plans: Sequence[WindowPlan], settings: ClientSettings, screen: Screen
    ) -> Sequence[StagedOutput]:
        """Writes the plans into their hidden stages, in one pass."""
        engine = self._alone if self.engine is Engine.LOCAL else self._with_spark
        return engine(plans, settings, screen)

    def _alone(
        self, plans: Sequence[WindowPlan], settings: ClientSettings, screen: Screen
    ) -> Sequence[StagedOutput]:
        from kafka_ordered_ops.output.stage import stage_windows

        screen.phase("reading")
        return stage_windows(
            plans, settings, self.output, ordered=self.ordered, progress=screen.report
        )

    def _with_spark(
        self, plans: Sequence[WindowPlan], settings: ClientSettings, screen: Screen
    ) -> Sequence[StagedOutput]:
        from kafka_ordered_ops.spark.read.read import read_windows
        from kafka_ordered_ops.spark.write.write import write_window
        from kafka_ordered_ops.spark.write.write_many import write_windows

        screen.phase("starting Spark")
        with _spark(self.conf()) as spark:
            screen.phase("reading with Spark", unit="tasks")
            with _tasks_watched(spark, screen):
                records = read_windows(
                    spark, plans, settings, ordered=self.ordered, engine=self.engine.value
                )
                if len(plans) == 1:
                    # It counts while it writes, and needs no second look at the files.
                    return [write_window(records, self.output, plans[0], ordered=self.ordered)]
                return write_windows(records, self.output, plans, ordered=self.ordered)


@contextlib.contextmanager
def _spark(conf: Mapping[str, str]) -> Iterator[Any]:
    from kafka_ordered_ops.spark.session import local_session

    # What py4j says about an interrupted call goes to the root logger, with two tracebacks.
    quiet = logging.NullHandler()
    logging.getLogger().addHandler(quiet)
    with _interrupts_held() as interrupts:
        spark = local_session("kafka-ordered-ops", java_home=bundled_java(), conf=conf)
    try:
        if interrupts:
            raise KeyboardInterrupt
        yield spark
    finally:
        # Ends the jobs that run, too.
        spark.stop()
        logging.getLogger().removeHandler(quiet)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[list[int]]:
    """Collects Ctrl-C while Spark starts: interrupted there, pyspark leaves its Java running for ever.

    Afterwards Ctrl-C raises again as Python has it. The handler that pyspark puts in its place calls Java
    on the very connection that the interrupted call is waiting on.
    """
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _tasks_watched(spark: Any, screen: Screen) -> Iterator[None]:
    """Reports the tasks done of the stages that run, while the block runs its jobs."""
    tracker = spark.sparkContext.statusTracker()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_TASKS_INTERVAL_S):
            stages = [
                info
                for stage in tracker.getActiveStageIds()
                if (info := tracker.getStageInfo(stage)) is not None
            ]
            if total := sum(info.numTasks for info in stages):
                screen.report(sum(info.numCompletedTasks for info in stages), total)

    thread = threading.Thread(target=watch, name="spark-tasks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bundled_java() -> Path | None:
    """The Java of the embedded extra, on a machine that has none of its own."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    from kafka_ordered_ops.embedded import JavaNotFoundError, java_home_for_spark

    try:
        return Path(java_home_for_spark())
    except JavaNotFoundError:
        # What Spark needs is said better by the session that misses it.
        return None
