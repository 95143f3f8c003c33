"""How a submitter and its job communicate: files in a folder that both see.

::

    <parent>/.koo/<name>/submit/<safe id>/<claim>-<attempt>-<token>/   one run of spark-submit; removed at its end
        submission.json   the request            (the submitter writes it)
        plan-00000.json   the plans
        settings          the client settings with their secrets: mode 0600
        alive             touched and locked while the submitter is alive
        progress.json     the job's progress     (the job writes it)
        result.json       its output
        error.json        why it failed
    <parent>/.koo/<name>/submit/logs/                                  the output of failed runs
    <parent>/.koo/<name>/detached/<asked id>/<claim>-<attempt>-<token>/   a run whose driver goes on without its
                          submitter: the same files, kept until its output is committed

    <temporary folder>/kafka-ordered-ops-<random>/content/             the same run's: mode 0700, on the submitter's machine
        main.py           the driver's main program, in client mode
        spark.conf        Spark's settings: mode 0600, because people put secrets there

``<parent>/<name>`` is the output folder; for an output without a folder, a folder of the user takes its place. Each
file is written atomically. The token is new for each run: anything that an older run of the same attempt writes later
is in another folder and has another token.
"""

from __future__ import annotations

import base64
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Meta

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.window.plan import PLAN_BYTES_MAX, WindowPlan
from kafka_ordered_ops.disk.disk import PRIVATE_MODE, Disk, try_lock
from kafka_ordered_ops.disk.temporary import private_folder
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.filesystem import LocalFiles, as_sink_error
from kafka_ordered_ops.spark.applications.guard import ALIVE_NAME
from kafka_ordered_ops.spec.detachable import DETACHED_S_MAX
from kafka_ordered_ops.spec.table import StoredTable, Table

#: Spark's setting that names the folder.
FOLDER_KEY: Final = "spark.kafkaOrderedOps.submission"

#: Spark's setting that holds the client settings if a file cannot: Spark masks it wherever it shows settings, because
#: ``spark.redaction.regex`` matches the word "secret".
SECRET_KEY: Final = "spark.kafkaOrderedOps.secret.settings"

SUBMIT_FOLDER: Final = "submit"
#: Of runs whose driver goes on without its submitter.
DETACHED_FOLDER: Final = "detached"

#: Readable by its owner only; the job deletes it once it has read it.
SETTINGS_NAME: Final = "settings"

_VERSION: Final = 1
#: No window id begins with an underscore.
_LOGS: Final = "_logs"
#: The length of the window id in the name of a log, which also has a claim and a token.
_SHOWN_MAX: Final = 100

#: How many logs of failed runs are kept; the oldest are removed first.
LOGS_MAX: Final = 50

#: Our files have a few hundred bytes; a larger file is not ours.
_SMALL_BYTES_MAX: Final = 64 * 1024

#: The limit of plans in one job.
_PLANS_MAX: Final = 100_000
#: Enough for the outputs of thousands of windows.
_SUBMISSION_BYTES_MAX: Final = 64 * 1024 * 1024

#: Enough for client settings with certificates.
_SETTINGS_BYTES_MAX: Final = 16 * 1024 * 1024

#: The names of runs and logs. Only these are removed.
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]+-\d+-[0-9a-f]{32}")
_LOG: Final = re.compile(r".+-[0-9a-f]{32}\.log(\.1)?")

_files: Final = LocalFiles()
_disk: Final = Disk()


class Order(StrEnum):
    """The purpose of a run of an application."""

    #: Write its windows.
    WRITE = "write"
    #: Report which outputs of a table still exist. For this and the following orders, the application does no own work.
    FIND = "find"
    #: Make the outputs visible.
    PUBLISH = "publish"
    #: Remove what is staged of the outputs.
    DISCARD = "discard"


class Attempt(Protocol):
    """The names for a run: those of a plan, or of one attempt's rows of a window in a table."""

    @property
    def group_id(self) -> str:
        """The consumer group."""

    @property
    def window_id(self) -> str:
        """The window."""

    @property
    def claim_id(self) -> str:
        """The window's claim."""

    @property
    def attempt(self) -> int:
        """The attempt, from 1."""


@dataclass(frozen=True)
class Submission:
    """The request to a job."""

    #: The id of this run of spark-submit.
    token: str
    #: The windows to write; empty for another order.
    plans: tuple[WindowPlan, ...]
    #: The folder for the windows, unless the job chooses another one; None if they are written to `table`.
    output: str | None
    #: The job's default for reading.
    engine: str
    ordered: bool
    table: Table | None = None
    order: Order = Order.WRITE
    #: For an order other than writing: the table's outputs, as `TableOutput.to_json` describes them.
    outputs: tuple[Mapping[str, Any], ...] = ()
    partition_by: str | None = None
    #: Whether the driver goes on without its submitter.
    detached: bool = False
    #: How many tries its host's task had then, in all; more later: it was cleared since.
    tries_max: int = 0

    def write(self, folder: PurePath) -> None:
        """Write the request to a folder."""
        for number, plan in enumerate(self.plans):
            _disk.write(str(_plan_path(folder, number)), plan.to_text().encode())
        request = {
            "version": _VERSION,
            "token": self.token,
            "plans": len(self.plans),
            "output": self.output,
            "engine": self.engine,
            "ordered": self.ordered,
            "partition_by": self.partition_by,
        }
        if self.table is not None:
            request["table"] = {
                **self.table.to_json(),
                "order": self.order.value,
                "outputs": [dict(output) for output in self.outputs],
            }
        if self.detached:
            # Missing otherwise: the driver may have a version that does not know it.
            request |= {"detached": True, "tries_max": self.tries_max}
        write_json(folder / "submission.json", request)

    @classmethod
    def read(cls, folder: PurePath) -> Submission:
        """Read the files of `write`.

        Raises:
            ConfigError: the submission is missing or damaged, or a newer version of this package wrote it.
        """
        try:
            value = read_json(folder / "submission.json", _SUBMISSION_BYTES_MAX)
            if value is None:
                raise ConfigError(
                    f"there is no submission in {folder}: the submitter has given up this job, or this process does not "
                    "see the folder. Driver and submitter must see the same output folder"
                )
            stored = _StoredSubmission.parse(value, "submission")
            texts = [_plan_text(folder, number) for number in range(stored.plans)]
            plans, table = tuple(map(WindowPlan.from_text, texts)), stored.table
            return cls(
                stored.token,
                plans,
                stored.output,
                stored.engine,
                stored.ordered,
                None if table is None else table.target,
                Order.WRITE if table is None else table.order,
                () if table is None else table.outputs,
                stored.partition_by,
                stored.detached,
                stored.tries_max,
            )
        except (JsonError, OSError) as error:
            raise ConfigError(f"the submission in {folder} cannot be read: {error}") from error


class _StoredOrder(StoredTable, frozen=True):
    order: Order
    outputs: tuple[dict[str, Any], ...]


class _StoredSubmission(Stored, frozen=True):
    what = "it"

    version: Literal[1]
    token: Text
    plans: Annotated[int, Meta(ge=0, le=_PLANS_MAX)]
    output: Text | None
    engine: Text
    ordered: bool
    partition_by: Text | None
    table: _StoredOrder | None = None
    detached: bool = False
    tries_max: int = 0


def _plan_path(folder: PurePath, number: int) -> PurePath:
    return folder / f"plan-{number:05d}.json"


def _plan_text(folder: PurePath, number: int) -> str:
    content = _disk.read(str(_plan_path(folder, number)), PLAN_BYTES_MAX, trusted=True)
    if content is None:
        raise JsonError(f"plan {number} is missing")
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"plan {number} is not UTF-8 text") from error


# --- the folder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The paths and descriptors of one run's files."""

    folder: PurePath
    log: PurePath
    #: A folder of this machine that only this user may read; also removed at the end of the run.
    private: PurePath
    token: str
    #: The files whose locks show that the run continues: in `folder`, and for `private`.
    alive: int
    in_use: int
    #: Descriptors of the folders that contain the run's folders and logs.
    folders: tuple[int, int, int]
    #: Whether `folder` stays after the end of spark-submit.
    is_kept: bool = False

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that the run's guard inherits."""
        return [self.alive, self.in_use, *self.folders]

    def for_guard(self, grace_s: float) -> str:
        """Return the argument of `guard` for the run, as JSON."""
        runs, logs, temporary = self.folders
        of_run = [] if self.is_kept else [[runs, self.folder.name]]
        options = {
            "remove": [*of_run, [temporary, self.private.parent.name]],
            "log": [logs, self.log.name],
            "alive": self.alive,
            "grace_s": grace_s,
        }
        return strict_json.dumps(options)

    def remove_log(self) -> None:
        """Remove the log of a successful run."""
        for path in (str(self.log), f"{self.log}.1"):
            _disk.remove(path)


@contextmanager
def new_place(control: str, named: Attempt, *, detached_for: str | None = None) -> Iterator[Place]:
    """Make the folders for one run, and remove the files of dead runs of the same output folder.

    Args:
        control: the folder beside the output folder.
        named: the plan or the write to name the run after.
        detached_for: the name by which a detached run is found: its folder stays unless the block raises. `None` means
            that the folder is removed.

    Raises:
        SinkError: the folder cannot be written to.
    """
    is_kept = detached_for is not None
    root, token = f"{control}/{DETACHED_FOLDER if is_kept else SUBMIT_FOLDER}", uuid.uuid4().hex
    run = f"{named.claim_id}-{named.attempt}-{token}"
    parent, logs = f"{root}/{detached_for or named.window_id}", f"{root}/{_LOGS}"
    folder = f"{parent}/{run}"

    def end(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not is_kept:
            remove_run(folder)

    with ExitStack() as stack:
        with as_sink_error(f"the folder {folder} for a run cannot be created"), _files.locked(root):
            _remove_dead(root, _is_given_up if is_kept else _is_dead)
            _disk.make_folder(logs)
            _disk.make_folder(parent)
            _disk.make_private(folder)
            stack.push(end)
            alive = stack.enter_context(_disk.create(f"{folder}/{ALIVE_NAME}", PRIVATE_MODE))
            try_lock(alive)
            private, in_use = stack.enter_context(private_folder())
            held = [parent, logs, os.path.dirname(os.path.dirname(private))]
            runs, logs_, above = (
                stack.enter_context(_disk.held(path, trusted=True)) for path in held
            )
        yield Place(
            PurePath(folder),
            PurePath(f"{logs}/{named.window_id[:_SHOWN_MAX]}-{run}.log"),
            PurePath(private),
            token,
            alive.fileno(),
            in_use.fileno(),
            (runs, logs_, above),
            is_kept,
        )


def _remove_dead(root: str, is_dead: Callable[[str], bool]) -> None:
    """Remove the folders of runs that nobody waits for (there are secrets in them), and old logs."""
    for name in _disk.names(root, trusted=True):
        # A folder of another user of the same output folder may be closed to this one.
        with suppress(OSError):
            for run in _disk.names(f"{root}/{name}", trusted=True):
                if _RUN.fullmatch(run) and is_dead(folder := f"{root}/{name}/{run}"):
                    remove_run(folder)
    logs = [
        f"{root}/{_LOGS}/{log}" for log in _disk.names(f"{root}/{_LOGS}") if _LOG.fullmatch(log)
    ]
    with suppress(OSError):
        times = {path: status.st_mtime for path in logs if (status := _disk.look(path)) is not None}
        for path in sorted(times, key=times.__getitem__)[: -LOGS_MAX + 1]:
            _disk.remove(path)


def _is_dead(folder: str) -> bool:
    # A run makes and locks this file under the lock that is held now, so no file is between the two.
    if not _disk.is_mine(folder):
        return False
    try:
        with _disk.open_own(f"{folder}/{ALIVE_NAME}") as alive:
            return try_lock(alive)
    except FileNotFoundError:
        return True


def _is_given_up(folder: str) -> bool:
    if not _disk.is_mine(folder):
        return False
    submitted = _disk.look(f"{folder}/{ALIVE_NAME}")
    return submitted is None or time.time() - submitted.st_mtime > DETACHED_S_MAX


def remove_run(folder: str) -> None:
    """Remove the folder of a run; a driver in a cluster that misses it ends itself."""
    with suppress(OSError):
        _disk.remove(folder)
    _disk.remove_if_empty(os.path.dirname(folder))


def detached_runs(control: str, name: str) -> list[tuple[PurePath, float]]:
    """Return the folders of the detached runs of a name, each with the time of its submission; the newest first."""
    parent = f"{control}/{DETACHED_FOLDER}/{name}"
    runs: list[tuple[PurePath, float]] = []
    for run in _disk.names(parent, trusted=True):
        folder = f"{parent}/{run}"
        if _RUN.fullmatch(run) and _disk.is_mine(folder):
            submitted = _disk.look(f"{folder}/{ALIVE_NAME}")
            runs.append((PurePath(folder), 0.0 if submitted is None else submitted.st_mtime))
    return sorted(runs, key=lambda entry: entry[1], reverse=True)


def is_in_submission(folder: PurePath) -> bool:
    """Return whether a process still submits a detached run."""
    return not _is_dead(str(folder))


# --- single files --------------------------------------------------------------------------------


def write_json(path: PurePath, value: Any) -> None:
    """Write a small JSON file atomically."""
    _disk.write(str(path), strict_json.dumps(value).encode())


def read_json(path: PurePath, limit_bytes: int = _SMALL_BYTES_MAX) -> Any | None:
    """Return the content of a file of `write_json`; None if there is no file. Raise `JsonError` for invalid JSON."""
    content = _disk.read(str(path), limit_bytes, trusted=True)
    return None if content is None else strict_json.loads(content, limit_bytes=limit_bytes)


def write_private(path: PurePath, content: bytes) -> None:
    """Write a file that only its owner may read, from the first byte on."""
    with _disk.create(str(path), PRIVATE_MODE) as file:
        file.write(content)


def take_private(path: PurePath) -> str:
    """Return the text of the client settings, and remove their file; raise `ConfigError` if there is none."""
    try:
        with _disk.open(str(path), trusted=True) as file:
            text = file.read(_SETTINGS_BYTES_MAX).decode("ascii")
        _disk.remove(str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the client settings of this submission are not in {path}: {error}. A driver on another "
            "machine is given them with deploy_mode='cluster'"
        ) from error
    return text


def settings_to_text(
    settings: ClientSettings, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Return client settings and storage options with their secrets as text for the job; never show this text."""
    values = asdict(settings)
    options = None if storage_options is None else dict(storage_options)
    try:
        if strict_json.as_read_back(options, limit_bytes=_SETTINGS_BYTES_MAX) != options:
            raise JsonError("not the same after a round trip")
    except JsonError:
        raise ConfigError(
            "storage_options cannot be sent to an application: give texts, numbers, and lists and mappings of them, or let the "
            "application's environment have the credentials"
        ) from None
    content = {
        "values": dict(values["_values"]),
        "extra_allowed": sorted(values["_extra_allowed"]),
        "overridden": list(settings.overridden),
        "storage_options": options,
    }
    return base64.b64encode(strict_json.dumps(content).encode()).decode()


def settings_from_text(text: str) -> tuple[ClientSettings, Mapping[str, Any] | None]:
    """Parse the result of `settings_to_text`; raise `ConfigError`, without the text, if it is invalid."""
    try:
        content = base64.b64decode(text, validate=True)
        value = strict_json.loads(content, limit_bytes=_SETTINGS_BYTES_MAX)
        stored = _StoredSettings.parse(value, "settings")
        settings = ClientSettings.from_mapping(stored.values, extra_allowed=stored.extra_allowed)
    except (JsonError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"the client settings of this submission cannot be read ({type(error).__name__}): submitter and "
            "driver may have different versions of this package"
        ) from None
    return replace(settings, overridden=stored.overridden), stored.storage_options


class _StoredSettings(Stored, frozen=True):
    values: dict[str, Any]
    extra_allowed: Texts
    overridden: Texts
    storage_options: dict[str, Any] | None
