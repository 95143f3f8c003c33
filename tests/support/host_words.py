"""The values of a host's task or asset from loose words: for tests that vary one word at a time."""

from __future__ import annotations

from typing import Any, Final

from kafka_ordered_ops import Application, Copy, Folder, Function, Policy, Process, Table, Window

_WINDOW: Final = (
    "starting_offsets",
    "max_out_of_orderness",
    "isolation",
    "exclude",
    "on_data_loss",
    "values",
    "on_bad",
)
_POLICY: Final = (
    "on_covered",
    "on_open_claim",
    "claim_age",
    "claim_wait",
    "on_foreign_commit",
    "redefine",
    "allow_fewer",
    "max_offsets",
)
_FOLDER: Final = ("partition_by", "storage_options", "storage_conn_id")
_TABLE: Final = {"mode": "table_mode", "keys": "table_keys", "conf": "table_conf"}
_JOB: Final = ("engine", "ordered", "conf", "keywords", "arguments", "submit")
_PROCESS: Final = (
    "keywords",
    "ordering",
    "max_concurrency",
    "workers",
    "timeout_s",
    "record_retries",
    "backoff",
    "when_exhausted",
    "dead_letter_topic",
    "batch_size",
)


def words(**given: Any) -> dict[str, Any]:
    """Return the arguments of a host: ``table=`` and ``table_mode=`` become a `Table`, and so on."""

    def taken(*names: str) -> dict[str, Any]:
        return {name: given.pop(name) for name in names if name in given}

    if window := taken(*_WINDOW):
        given["window"] = Window(given.pop("topics"), **window)
    if policy := taken(*_POLICY):
        given["policy"] = Policy(**policy)
    if (table := given.pop("table", None)) is not None:
        if given.get("output") is not None:
            raise TypeError("a test gives a table or an output")
        more = {new: given.pop(old) for new, old in _TABLE.items() if old in given}
        given["output"] = Table(table, **more, **taken("delete_tombstones"))
    if folder := taken(*_FOLDER):
        given["output"] = Folder(given["output"], **folder)
    return given


def job_words(**given: Any) -> dict[str, Any]:
    """As `words`, with ``function=`` or ``application=`` and their words as the job, and a copy's otherwise."""
    given = words(**given)
    more = {name: given.pop(name) for name in _JOB if name in given}
    if "application" in given:
        given["job"] = Application(given.pop("application"), **more)
    elif "function" in given:
        given["job"] = Function(given.pop("function"), **more)
    elif more:
        given["job"] = Copy(**more)
    return given


def process_words(**given: Any) -> dict[str, Any]:
    """As `words`, with ``function=`` and its words as a `Process`."""
    given = words(**given)
    more: dict[str, Any] = {name: given.pop(name) for name in _PROCESS if name in given}
    if "record_retries" in more:
        more["retries"] = more.pop("record_retries")
    given["job"] = Process(given.pop("function"), **more)
    return given
