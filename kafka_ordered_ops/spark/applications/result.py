"""The reports of a submitted job: its progress, its results, and its failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, SinkError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spark.applications.protocol import read_json, write_json
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.write.table_write import TableWrite

_VERSION: Final = 1

RESULT_NAME: Final = "result.json"
PROGRESS_NAME: Final = "progress.json"
ERROR_NAME: Final = "error.json"

#: The outputs of thousands of windows, each of some hundred bytes.
_RESULT_BYTES_MAX: Final = 64 * 1024 * 1024

#: A message may quote a job's output.
_MESSAGE_CHARACTERS_MAX: Final = 8_000

#: The facts of an error that its job tells.
_FACTS: Final = ("window_id", "group_id", "ledger_id")

#: What a result is of: a window that was to be written, or an attempt's rows of one in a table.
Named = WindowPlan | TableWrite


@dataclass(frozen=True)
class JobResult:
    """The results that a job reported for its windows."""

    #: As the sink has described each output, in the order of the plans; empty for one that is gone from its table.
    results: tuple[Mapping[str, Any], ...]
    #: Spark's name for the run, as its history server lists it.
    application_id: str | None

    def write(self, folder: PurePath, token: str, plans: Sequence[Named]) -> None:
        """Report it; an earlier report of the same run is replaced."""
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
        """Return the report of this very run; None where it has made none.

        Raises:
            SinkError: the report is damaged, or is about another run, window, claim or attempt.
        """
        try:
            value = read_json(folder / RESULT_NAME, _RESULT_BYTES_MAX)
            if value is None:
                return None
            fields = Fields(value, "result")
            if (version := fields.integer("version")) != _VERSION:
                raise JsonError(f"version {version}; this package reads version {_VERSION}")
            if fields.text("token") != token:
                raise JsonError("it is the report of another run")
            application_id = fields.text_or_none("application_id")
            results = [_result_of(one, plans) for one in fields.objects("windows")]
            fields.done()
        except JsonError as error:
            raise SinkError(
                f"the job's result in {folder / RESULT_NAME} is not accepted: {error}. Run the same window "
                "again"
            ) from error
        if [key for key, _ in results] != [_key_of(plan) for plan in plans]:
            raise SinkError(
                f"the job reported {_names(key for key, _ in results)}, but "
                f"{_names(map(_key_of, plans))} was requested. Run the same window again"
            )
        return cls(tuple(result for _, result in results), application_id)


def _key_of(plan: Named) -> dict[str, Any]:
    """Return the fields that distinguish a result from that of another window, claim, attempt or part."""
    return {
        "window_id": plan.window_id,
        "claim_id": plan.claim_id,
        "attempt": plan.attempt,
        "part": None if plan.part is None else plan.part.to_json(),
    }


def _result_of(fields: Fields, plans: Sequence[Named]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    part = fields.object_or_none("part")
    key: dict[str, Any] = {
        "window_id": fields.text("window_id"),
        "claim_id": fields.text("claim_id"),
        "attempt": fields.integer("attempt"),
        "part": None
        if part is None
        else {"index": part.integer("index"), "count": part.integer("count")},
    }
    result = fields.anything("result")
    fields.done()
    if not isinstance(result, dict):
        raise JsonError(f"the result of window {key['window_id']} is {type(result).__name__}")
    return key, result


def _names(keys: Any) -> str:
    shown = [
        f"window {key['window_id']} (claim {key['claim_id']}, attempt {key['attempt']})"
        for key in keys
    ]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


@dataclass(frozen=True)
class JobProgress:
    """How far a job is: of the stages that Spark runs right now."""

    #: 0 of 0 while Spark starts, and between stages.
    tasks_done: int = 0
    tasks_total: int = 0
    #: Records that these tasks have read or written; counted as each task ends.
    records: int = 0
    #: The job's page in a browser.
    page: str | None = None

    def write(self, folder: PurePath) -> None:
        """Show it to the submitter."""
        progress = {
            "tasks_done": self.tasks_done,
            "tasks_total": self.tasks_total,
            "records": self.records,
            "page": self.page,
        }
        write_json(folder / PROGRESS_NAME, progress)

    @classmethod
    def read(cls, folder: PurePath) -> JobProgress | None:
        """Return the job's last progress; None before the job has its window."""
        try:
            value = read_json(folder / PROGRESS_NAME)
            if value is None:
                return None
            fields = Fields(value, "progress")
            return cls(
                tasks_done=fields.integer("tasks_done"),
                tasks_total=fields.integer("tasks_total"),
                records=fields.integer("records"),
                page=fields.text_or_none("page"),
            )
        except JsonError:
            # Nothing is decided by it.
            return None


@dataclass(frozen=True)
class JobError:
    """The exception that ended a job."""

    #: The class's name.
    kind: str
    message: str
    #: Whether the class is one of `core.errors`.
    named: bool
    #: What such an error is about.
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> JobError:
        """Return an exception, or the error of this package that made a task fail and with it the job."""
        found = error if isinstance(error, KafkaOrderedOpsError) else named_error(error)
        shown = error if found is None else found
        # Java's messages end in the stack of the place where they were made.
        lines = (line for line in str(shown).splitlines() if not line.lstrip().startswith("at "))
        message = "\n".join(lines).strip()[:_MESSAGE_CHARACTERS_MAX]
        told = {} if found is None else found.facts
        facts = {name: told[name] for name in _FACTS if isinstance(told.get(name), str)}
        return cls(type(shown).__name__, message, found is not None, facts)

    def write(self, folder: PurePath) -> None:
        """Report to the submitter."""
        error = {
            "kind": self.kind,
            "message": self.message,
            "named": self.named,
            "facts": dict(self.facts),
        }
        write_json(folder / ERROR_NAME, error)

    @classmethod
    def read(cls, folder: PurePath) -> JobError | None:
        """Return the error that ended the job; None if the job could not report it."""
        try:
            value = read_json(folder / ERROR_NAME)
            if value is None:
                return None
            fields = Fields(value, "error")
            told = fields.object("facts")
            facts = {name: told.text(name) for name in _FACTS if told.has(name)}
            return cls(fields.text("kind"), fields.text("message"), fields.boolean("named"), facts)
        except JsonError:
            return None

    def as_named(self, more: str) -> KafkaOrderedOpsError | None:
        """Return the error of this package that it is, saying `more` as well; None where it is another one."""
        kind = getattr(errors, self.kind, None) if self.named else None
        if isinstance(kind, type) and issubclass(kind, KafkaOrderedOpsError):
            return kind(f"{self.message}. {more}", **self.facts)
        return None
