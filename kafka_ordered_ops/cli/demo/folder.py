"""The demo's output folder: empty, or from an earlier demo. A folder with other files is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from kafka_ordered_ops.cli.demo.job import DELAYS_FOLDER, FLIGHTS_FOLDER
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.disk.disk import CONTROL_FOLDER

DEFAULT_FOLDER: Final = "kafka-ordered-ops-demo"
PICTURE_NAME: Final = "windows.png"
REPORT_NAME: Final = "report.json"
CRASH_LOG_NAME: Final = "killed-try.log"

#: Marks the folder of a demo. Written first, so that an interrupted demo has one, too.
MARKER_NAME: Final = ".kafka-ordered-ops-demo"

_OURS: Final = (
    FLIGHTS_FOLDER,
    DELAYS_FOLDER,
    CONTROL_FOLDER,
    PICTURE_NAME,
    REPORT_NAME,
    CRASH_LOG_NAME,
)


def prepare_folder(folder: Path) -> Path:
    """Return a folder that is empty except for the marker; files of an earlier demo are removed.

    Raises:
        ConfigError: the folder holds other files, or cannot be created.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted({path.name for path in folder.iterdir()} - {*_OURS, MARKER_NAME})
        earlier = (folder / MARKER_NAME).is_file()
        if others or (not earlier and any(folder.iterdir())):
            example = others[0] if others else next(folder.iterdir()).name
            raise ConfigError(
                f"{folder} holds {example}, which no demo wrote: choose an empty folder, or one that does not exist"
            )
        (folder / MARKER_NAME).touch()
        for name in _OURS:
            _remove(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be the output folder: {error}") from error
    return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
