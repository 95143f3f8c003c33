"""The reports of a submitted job: its progress, its results, and its failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, SinkError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text
from kafka_ordered_ops.core.window.plan import PlanPart, WindowPlan
from kafka_ordered_ops.spark.applications.protocol import read_json, write_json
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.write.table_write import TableWrite

_VERSION: Final = 1

RESULT_NAME: Final = "result.json"
PROGRESS_NAME: Final = "progress.json"
ERROR_NAME: Final = "error.json"

#: Enough for the outputs of thousands of windows, each of a few hundred bytes.
_RESULT_BYTES_MAX: Final = 64 * 1024 * 1024

#: A message may quote a job's output.
_MESSAGE_CHARACTERS_MAX: Final = 8_000

#: The facts of an error that a job reports.
_FACTS: Final = ("window_id", "group_id", "ledger_id")

#: The subject of a result: a window to write, or an attempt's rows of a window in a table.
Named = WindowPlan | TableWrite


@dataclass(frozen=True)
class JobResult:
    """The results that a job reported for its windows."""

    #: Each output as its sink described it, in the order of the plans; empty for an output that is gone from its table.
    results: tuple[Mapping[str, Any], ...]
    #: Spark's name for the run, as its history server lists it.
    application_id: str | None

    def write(self, folder: PurePath, token: str, plans: Sequence[Named]) -> None:
        """Report the results; replace an earlier report of the same run."""
        windows = [
            {**_key_of(plan), "result": dict(result)}
            for plan, result in zip(plans, self.results, strict=True)
        ]
        report = {
            "version": _VERSION,
            "token": token,
            "application_id": self.application_id,
            "windows": windows,
        }
        write_json(folder / RESULT_NAME, report)

    @classmethod
    def read(cls, folder: PurePath, token: str, plans: Sequence[Named]) -> JobResult | None:
        """Return the report of this very run; None if there is none.

        Raises:
            SinkError: the report is damaged, or is about another run, window, claim or attempt.
        """
        try:
            value = read_json(folder / RESULT_NAME, _RESULT_BYTES_MAX)
            if value is None:
                return None
            stored = _StoredResult.parse(value, "result")
            if stored.token != token:
                raise JsonError("it is the report of another run")
        except JsonError as error:
            raise SinkError(
                f"the job's result in {folder / RESULT_NAME} is not accepted: {error}. Run the same window "
                "again"
            ) from error
        if list(map(_key_of, stored.windows)) != list(map(_key_of, plans)):
            raise SinkError(
                f"the job reported {_names(stored.windows)}, but {_names(plans)} was requested. Run the same window again"
            )
        return cls(tuple(window.result for window in stored.windows), stored.application_id)


class _StoredWindow(Stored, frozen=True):
    window_id: Text
    claim_id: Text
    attempt: int
    part: PlanPart | None
    result: dict[str, Any]


class _StoredResult(Stored, frozen=True):
    what = "it"

    version: Literal[1]
    token: Text
    application_id: Text | None
    windows: list[_StoredWindow]


def _key_of(plan: Named | _StoredWindow) -> dict[str, Any]:
    """Return the fields that distinguish a result from that of another window, claim, attempt or part."""
    return {
        "window_id": plan.window_id,
        "claim_id": plan.claim_id,
        "attempt": plan.attempt,
        "part": None if plan.part is None else plan.part.to_json(),
    }


def _names(windows: Sequence[Named | _StoredWindow]) -> str:
    names = [
        f"window {window.window_id} (claim {window.claim_id}, attempt {window.attempt})"
        for window in windows[:3]
    ]
    return ", ".join(names) + (f" and {len(windows) - 3} more" if len(windows) > 3 else "")


class JobProgress(Stored, frozen=True, forbid_unknown_fields=False):
    """How far a job is: of the stages that Spark runs right now."""

    #: 0 of 0 while Spark starts, and between stages.
    tasks_done: int = 0
    tasks_total: int = 0
    #: Records that these tasks have read or written, counted at the end of each task.
    records: int = 0
    #: The job's page in a browser.
    page: Text | None = None

    def write(self, folder: PurePath) -> None:
        """Show it to the submitter."""
        write_json(folder / PROGRESS_NAME, self.to_json())

    @classmethod
    def read(cls, folder: PurePath) -> JobProgress | None:
        """Return the job's last progress; None before the job has its window."""
        try:
            value = read_json(folder / PROGRESS_NAME)
            return None if value is None else cls.parse(value, "progress")
        except JsonError:
            # Nothing depends on it.
            return None


class JobError(Stored, frozen=True, forbid_unknown_fields=False):
    """The exception that ended a job."""

    #: The class's name.
    kind: Text
    message: Text
    #: Whether the class is one of `core.errors`.
    named: bool
    #: What such an error is about.
    facts: dict[str, Any]

    @classmethod
    def of(cls, error: BaseException) -> JobError:
        """Return a report of an exception, or of the error of this package that made a task and the job fail."""
        own = error if isinstance(error, KafkaOrderedOpsError) else named_error(error)
        reported = error if own is None else own
        # Java's messages end with a stack trace.
        lines = (line for line in str(reported).splitlines() if not line.lstrip().startswith("at "))
        message = "\n".join(lines).strip()[:_MESSAGE_CHARACTERS_MAX]
        raw = {} if own is None else own.facts
        facts = {name: raw[name] for name in _FACTS if isinstance(raw.get(name), str)}
        return cls(type(reported).__name__, message, own is not None, facts)

    def write(self, folder: PurePath) -> None:
        """Report to the submitter."""
        write_json(folder / ERROR_NAME, self.to_json())

    @classmethod
    def read(cls, folder: PurePath) -> JobError | None:
        """Return the error that ended the job; None if the job could not report it."""
        try:
            value = read_json(folder / ERROR_NAME)
            return None if value is None else cls.parse(value, "error")
        except JsonError:
            return None

    def as_named(self, more: str) -> KafkaOrderedOpsError | None:
        """Return the error as one of this package, with `more` appended to its message; None for any other error."""
        kind = getattr(errors, self.kind, None) if self.named else None
        if isinstance(kind, type) and issubclass(kind, KafkaOrderedOpsError):
            facts = {name: value for name, value in self.facts.items() if name in _FACTS}
            return kind(f"{self.message}. {more}", **facts)
        return None
