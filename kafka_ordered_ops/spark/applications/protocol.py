"""How a submitter and its job communicate: files in a folder that both see.

::

    <parent>/.koo/<name>/submit/<safe id>/<claim>-<attempt>-<token>/   one run of spark-submit; gone with it
        submission.json   the request            (the submitter writes it)
        plan-00000.json   the plans
        settings          the client settings, secrets and all: mode 0600
        alive             touched and locked while the submitter is alive
        progress.json     the job's progress     (the job writes it)
        result.json       its output
        error.json        why it failed
    <parent>/.koo/<name>/submit/logs/                                  the output of failed runs

    <temporary folder>/kafka-ordered-ops-<random>/content/             the same run's: mode 0700, on the submitter's machine
        main.py           the driver's main program, in client mode
        spark.conf        Spark's settings: mode 0600, because people put secrets there

``<parent>/<name>`` is the output folder; where the output has no such folder, one of the user's
own takes its place. Each file is there whole or not at all. The token is new for each run: whatever an older one
writes later, of the same attempt too, is in another folder and names another token.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import PLAN_BYTES_MAX, WindowPlan
from kafka_ordered_ops.core.window.window import safe_name
from kafka_ordered_ops.disk.disk import PRIVATE_MODE, Disk, try_lock
from kafka_ordered_ops.disk.temporary import private_folder
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.filesystem import LocalFiles, as_sink_error
from kafka_ordered_ops.spark.applications.guard import ALIVE_NAME
from kafka_ordered_ops.spec.table import Table

#: Spark's setting that names the folder.
FOLDER_KEY: Final = "spark.kafkaOrderedOps.submission"

#: Spark's setting that holds the client settings where no file can: it is masked wherever Spark shows
#: settings, because ``spark.redaction.regex`` matches the word "secret".
SECRET_KEY: Final = "spark.kafkaOrderedOps.secret.settings"

SUBMIT_FOLDER: Final = "submit"

#: Readable by its owner only; the job deletes it once it has read it.
SETTINGS_NAME: Final = "settings"

_VERSION: Final = 1
_LOGS: Final = "logs"

#: Logs of failed runs; the oldest go first.
LOGS_MAX: Final = 50

#: Some hundred bytes; something larger is not ours.
_SMALL_BYTES_MAX: Final = 64 * 1024

#: Plans of one job.
_PLANS_MAX: Final = 100_000
#: With the outputs of thousands of windows.
_SUBMISSION_BYTES_MAX: Final = 64 * 1024 * 1024

#: Client settings with certificates.
_SETTINGS_BYTES_MAX: Final = 16 * 1024 * 1024

#: What is removed here is called so, and nothing else.
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]+-\d+-[0-9a-f]{32}")
_LOG: Final = re.compile(r".+-[0-9a-f]{32}\.log(\.1)?")

_files: Final = LocalFiles()
_disk: Final = Disk()


class Order(StrEnum):
    """What an application is run for."""

    #: To write its windows.
    WRITE = "write"
    #: To tell which of a table's outputs are still there; and, as below, nothing of its own work.
    FIND = "find"
    #: To make them visible.
    PUBLISH = "publish"
    #: To remove what is staged of them.
    DISCARD = "discard"


class Attempt(Protocol):
    """What a run is named after: a plan, or one attempt's rows of a window in a table."""

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

    #: Of this run of spark-submit, and of no other.
    token: str
    #: To be written; none with another order.
    plans: tuple[WindowPlan, ...]
    #: The folder that gets the windows, if the job does not choose another one; None: they go to `table`.
    output: str | None
    #: The job's defaults for reading.
    engine: str
    ordered: bool
    table: Table | None = None
    order: Order = Order.WRITE
    #: With another order than to write: the table's outputs, as `TableOutput.to_json` describes them.
    outputs: tuple[Mapping[str, Any], ...] = ()
    partition_by: str | None = None

    def write(self, folder: PurePath) -> None:
        """Put it into a folder."""
        for number, plan in enumerate(self.plans):
            _disk.write(str(_plan_path(folder, number)), plan.to_text().encode())
        asked = {
            "version": _VERSION,
            "token": self.token,
            "plans": len(self.plans),
            "output": self.output,
            "engine": self.engine,
            "ordered": self.ordered,
            "partition_by": self.partition_by,
        }
        if self.table is not None:
            asked["table"] = {
                **self.table.to_json(),
                "order": self.order.value,
                "outputs": [dict(one) for one in self.outputs],
            }
        write_json(folder / "submission.json", asked)

    @classmethod
    def read(cls, folder: PurePath) -> Submission:
        """Return the inverse of `write`.

        Raises:
            ConfigError: there is none, or it is damaged, or of a newer version of this package.
        """
        try:
            value = read_json(folder / "submission.json", _SUBMISSION_BYTES_MAX)
            if value is None:
                raise ConfigError(
                    f"there is no submission in {folder}: the submitter has given up this job, or this process does not "
                    "see the folder. Driver and submitter must see the same output folder"
                )
            fields = Fields(value, "submission")
            if (version := fields.integer("version")) != _VERSION:
                raise JsonError(f"version {version}; this package reads version {_VERSION}")
            count = fields.integer("plans", least=0, greatest=_PLANS_MAX)
            texts = [_plan_text(folder, number) for number in range(count)]
            submission = cls(
                token=fields.text("token"),
                plans=tuple(map(WindowPlan.from_text, texts)),
                output=fields.text_or_none("output"),
                engine=fields.text("engine"),
                ordered=fields.boolean("ordered"),
                **_table_of(fields),
                partition_by=fields.text_or_none("partition_by"),
            )
            fields.done()
        except (JsonError, OSError) as error:
            raise ConfigError(f"the submission in {folder} cannot be read: {error}") from error
        return submission


def _table_of(fields: Fields) -> dict[str, Any]:
    if not fields.has("table"):
        return {}
    table = fields.object("table")
    order, outputs = table.choice("order", Order), table.anything("outputs")
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise JsonError("table.outputs is not a list of objects")
    found = {"table": Table.from_json(table), "order": order, "outputs": tuple(outputs)}
    table.done()
    return found


def _plan_path(folder: PurePath, number: int) -> PurePath:
    return folder / f"plan-{number:05d}.json"


def _plan_text(folder: PurePath, number: int) -> str:
    content = _disk.read(str(_plan_path(folder, number)), PLAN_BYTES_MAX, trusted=True)
    try:
        return str(content or b"", "utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"plan {number} is not UTF-8 text") from error


# --- the folder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The places of one run's files."""

    folder: PurePath
    log: PurePath
    #: A folder of this machine that nobody else may look into; gone with the run as well.
    private: PurePath
    token: str
    #: The files whose locks show that the run continues: of `folder`, and of `private`.
    alive: int
    in_use: int
    #: The folders that those of the run are in, by descriptors.
    folders: tuple[int, int, int]

    @property
    def descriptors(self) -> list[int]:
        """What the guard of the run inherits."""
        return [self.alive, self.in_use, *self.folders]

    def for_guard(self, grace_s: float) -> str:
        """Return what `guard` is told of it."""
        runs, logs, temporary = self.folders
        told = {
            "remove": [[runs, self.folder.name], [temporary, self.private.parent.name]],
            "log": [logs, self.log.name],
            "alive": self.alive,
            "grace_s": grace_s,
        }
        return strict_json.dumps(told)

    def remove_log(self) -> None:
        """Remove the log of a run that went well."""
        for path in (str(self.log), f"{self.log}.1"):
            _disk.remove(path)


@contextmanager
def new_place(control: str, named: Attempt) -> Iterator[Place]:
    """Make the folders for one run, and remove the files of dead runs of the same output folder.

    Args:
        control: the folder beside the output folder.
        named: what the run is named after.

    Raises:
        SinkError: the folder cannot be written to.
    """
    root, token = f"{control}/{SUBMIT_FOLDER}", uuid.uuid4().hex
    run = f"{named.claim_id}-{named.attempt}-{token}"
    name = safe_name(named.window_id)
    parent, logs = f"{root}/{name}", f"{root}/{_LOGS}"
    folder = f"{parent}/{run}"
    with ExitStack() as stack:
        with as_sink_error(f"the folder {folder} for a run cannot be made"), _files.locked(root):
            _remove_dead(root)
            _disk.make_folder(logs)
            _disk.make_folder(parent)
            _disk.make_private(folder)
            stack.callback(_disk.remove_if_empty, parent)
            stack.callback(_remove, folder)
            alive = stack.enter_context(_disk.create(f"{folder}/{ALIVE_NAME}", PRIVATE_MODE))
            try_lock(alive)
            private, in_use = stack.enter_context(private_folder())
            held = [parent, logs, os.path.dirname(os.path.dirname(private))]
            runs, logs_, above = (
                stack.enter_context(_disk.held(one, trusted=True)) for one in held
            )
        yield Place(
            PurePath(folder),
            PurePath(f"{logs}/{name}-{run}.log"),
            PurePath(private),
            token,
            alive.fileno(),
            in_use.fileno(),
            (runs, logs_, above),
        )


def _remove_dead(root: str) -> None:
    """Remove the folders of runs whose submitter is gone: there are secrets in them; and old logs."""
    for name in _disk.names(root, trusted=True):
        # One that another user of the same output folder has made may be closed to this one.
        with suppress(OSError):
            for run in _disk.names(f"{root}/{name}", trusted=True):
                if _RUN.fullmatch(run) and _is_dead(folder := f"{root}/{name}/{run}"):
                    _remove(folder)
                    _disk.remove_if_empty(f"{root}/{name}")
    logs = [
        f"{root}/{_LOGS}/{one}" for one in _disk.names(f"{root}/{_LOGS}") if _LOG.fullmatch(one)
    ]
    with suppress(OSError):
        times = {path: found.st_mtime for path in logs if (found := _disk.look(path)) is not None}
        for path in sorted(times, key=times.__getitem__)[: -LOGS_MAX + 1]:
            _disk.remove(path)


def _is_dead(folder: str) -> bool:
    # Made and locked in one step, as seen from here: both happen under the lock that is held now.
    if not _disk.is_mine(folder):
        return False
    try:
        with _disk.open_own(f"{folder}/{ALIVE_NAME}") as alive:
            return try_lock(alive)
    except FileNotFoundError:
        return True


def _remove(folder: str) -> None:
    with suppress(OSError):
        _disk.remove(folder)


# --- single files --------------------------------------------------------------------------------


def write_json(path: PurePath, value: Any) -> None:
    """Write a small file by an atomic rename."""
    _disk.write(str(path), strict_json.dumps(value).encode())


def read_json(path: PurePath, limit_bytes: int = _SMALL_BYTES_MAX) -> Any | None:
    """Return the JSON of such a file; None if there is no file. Raises `JsonError`."""
    content = _disk.read(str(path), limit_bytes, trusted=True)
    return None if content is None else strict_json.loads(content, limit_bytes=limit_bytes)


def write_private(path: PurePath, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    with _disk.create(str(path), PRIVATE_MODE) as file:
        file.write(content)


def take_private(path: PurePath) -> str:
    """Return the text of the client settings, and remove their file; raise `ConfigError` where there is none."""
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
    given = asdict(settings)
    options = None if storage_options is None else dict(storage_options)
    try:
        if strict_json.as_read_back(options, limit_bytes=_SETTINGS_BYTES_MAX) != options:
            raise JsonError("something else than was given")
    except JsonError:
        raise ConfigError(
            "storage_options cannot be sent to an application: give texts, numbers, and lists and mappings of them, or let the "
            "application's environment have the credentials"
        ) from None
    told = {
        "values": dict(given["_values"]),
        "extra_allowed": sorted(given["_extra_allowed"]),
        "overridden": list(settings.overridden),
        "storage_options": options,
    }
    return base64.b64encode(strict_json.dumps(told).encode()).decode()


def settings_from_text(text: str) -> tuple[ClientSettings, Mapping[str, Any] | None]:
    """Parse the result of `settings_to_text`; raise `ConfigError`, which does not show the text."""
    try:
        content = base64.b64decode(text, validate=True)
        fields = Fields(strict_json.loads(content, limit_bytes=_SETTINGS_BYTES_MAX), "settings")
        settings = ClientSettings.from_mapping(
            fields.anything("values"), extra_allowed=fields.texts("extra_allowed")
        )
        settings = replace(settings, overridden=fields.texts("overridden"))
        storage_options = fields.anything("storage_options")
        fields.done()
    except (JsonError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"the client settings of this submission cannot be read ({type(error).__name__}): submitter and "
            "driver may have different versions of this package"
        ) from None
    return settings, storage_options
