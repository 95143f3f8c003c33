"""How a submitter and its job communicate: files in a folder that both see.

::

    <parent>/.koo/<name>/submit/<safe id>/<claim>-<attempt>-<token>/   one run of spark-submit; gone with it
        submission.json   the request            (the submitter writes it)
        plan-00000.json   the plans
        settings          the client settings, secrets and all: mode 0600
        spark.conf        Spark's settings: mode 0600, because people put secrets there
        alive             touched and locked while the submitter is alive
        progress.json     the job's progress     (the job writes it)
        result.json       its output
        error.json        why it failed
    <parent>/.koo/<name>/submit/logs/                                  the output of failed runs

``<parent>/<name>`` is the output folder; where the output has no such folder, one of the user's
own takes its place. Each file is there whole or not at all. The token is new for each run: whatever an older one
writes later, of the same attempt too, is in another folder and names another token.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
import pickle
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import safe_name
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.filesystem import LocalFiles, as_sink_error
from kafka_ordered_ops.spark.applications.guard import ALIVE_NAME
from kafka_ordered_ops.spark.table_target import TableTarget

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

#: With the outputs of thousands of windows.
_SUBMISSION_BYTES_MAX: Final = 64 * 1024 * 1024

_files: Final = LocalFiles()


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
    table: TableTarget | None = None
    order: Order = Order.WRITE
    #: With another order than to write: the table's outputs, as `TableOutput.to_json` describes them.
    outputs: tuple[Mapping[str, Any], ...] = ()
    partition_by: str | None = None

    def write(self, folder: Path) -> None:
        """Put it into a folder."""
        for number, plan in enumerate(self.plans):
            _files.write(str(_plan_path(folder, number)), plan.to_text().encode())
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
    def read(cls, folder: Path) -> Submission:
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
            count = fields.integer("plans", least=0)
            texts = [_plan_path(folder, number).read_text("utf-8") for number in range(count)]
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
    found = {"table": TableTarget.from_json(table), "order": order, "outputs": tuple(outputs)}
    table.done()
    return found


def _plan_path(folder: Path, number: int) -> Path:
    return folder / f"plan-{number:05d}.json"


# --- the folder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The places of one run's files. `alive` is the open file whose lock shows that the run continues."""

    folder: Path
    log: Path
    token: str
    alive: int


@contextmanager
def new_place(control: str, named: Attempt) -> Iterator[Place]:
    """Make the folder for one run, and remove the files of dead runs of the same output folder.

    Args:
        control: the folder beside the output folder.
        named: what the run is named after.

    Raises:
        SinkError: the folder cannot be written to.
    """
    root, token = Path(control) / SUBMIT_FOLDER, uuid.uuid4().hex
    run = f"{named.claim_id}-{named.attempt}-{token}"
    name = safe_name(named.window_id)
    folder = root / name / run
    with (
        as_sink_error(f"the folder {folder} for a run cannot be made"),
        _files.locked(str(root)),
    ):
        _remove_dead(root)
        _files.make_folder(str(root / _LOGS))
        _files.make_folder(str(folder.parent))
        folder.mkdir(mode=0o700)
        alive = os.open(folder / ALIVE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        yield Place(folder, root / _LOGS / f"{name}-{run}.log", token, alive)
    finally:
        os.close(alive)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def _remove_dead(root: Path) -> None:
    """Remove the folders of runs whose submitter is gone: there are secrets in them; and old logs."""
    for folder in root.glob("*/*/"):
        if folder.parent.name != _LOGS and _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()
    with suppress(OSError):
        logs = sorted((root / _LOGS).iterdir(), key=lambda log: log.stat().st_mtime)
        for log in logs[: -LOGS_MAX + 1]:
            log.unlink(missing_ok=True)


def _is_dead(folder: Path) -> bool:
    # Made and locked in one step, as seen from here: both happen under the lock that is held now.
    try:
        descriptor = os.open(folder / ALIVE_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


# --- single files --------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Write a small file by an atomic rename."""
    _files.write(str(path), strict_json.dumps(value).encode())


def read_json(path: Path, limit_bytes: int = _SMALL_BYTES_MAX) -> Any | None:
    """Return the JSON of such a file; None if there is no file. Raises `JsonError`."""
    content = _files.read(str(path), limit_bytes=limit_bytes)
    return None if content is None else strict_json.loads(content, limit_bytes=limit_bytes)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def settings_to_text(
    settings: ClientSettings, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Return client settings and storage options with their secrets as text for the job; never show this text."""
    # Pickled, as for executors. The source is this package's own file or setting.
    try:
        pickled = pickle.dumps((settings, storage_options))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"storage_options cannot be sent to an application ({type(error).__name__}): give texts and numbers, or let the "
            "application's environment have the credentials"
        ) from None
    return base64.b64encode(pickled).decode()


def settings_from_text(text: str) -> tuple[ClientSettings, Mapping[str, Any] | None]:
    """Parse the result of `settings_to_text`; raise `ConfigError`, which does not show the text."""
    try:
        settings, storage_options = pickle.loads(base64.b64decode(text))
    except (
        TypeError,
        ValueError,
        binascii.Error,
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
    ) as error:
        raise ConfigError(
            f"the client settings of this submission cannot be read ({type(error).__name__}): submitter and "
            "driver may have different versions of this package"
        ) from None
    if not isinstance(settings, ClientSettings):
        raise ConfigError("the client settings of this submission are invalid")
    return settings, storage_options
