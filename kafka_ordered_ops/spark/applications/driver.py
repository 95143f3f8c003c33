"""The driver's main program in client mode: it links the driver to its submitter, then runs the user's application.

The application sees the same environment as without this program: its own ``sys.argv``, its folder first on
``sys.path``, and ``__main__``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import PurePath
from types import ModuleType
from typing import Final

from kafka_ordered_ops.spark.applications.parent_watch import die_with_parent, watch
from kafka_ordered_ops.spark.applications.result import JobError

#: The file that is passed to spark-submit. It is in its own folder, so that the first folder on Python's path has no file
#: with the name of a module.
MAIN_NAME: Final = "main.py"
MAIN: Final = """\
from kafka_ordered_ops.spark.applications.driver import main

main({folder!r})
"""


def main(of_run: str) -> None:
    """Run the application ``sys.argv[1]`` with the following arguments, for the run with this folder."""
    die_with_parent()
    folder = PurePath(of_run)
    watch(folder, parent=os.getppid())
    del sys.argv[0]
    try:
        _run(sys.argv[0])
    except Exception as error:
        with contextlib.suppress(OSError):  # the folder is gone if the submitter has given up
            JobError.of(error).write(folder)
        raise


def _run(application: str) -> None:
    sys.path[0] = os.path.dirname(application)
    module = ModuleType("__main__")
    module.__file__ = application
    # Functions of a job are pickled by value for the executors because they are in `__main__`.
    sys.modules["__main__"] = module
    with open(application, "rb") as file:
        text = file.read()
    exec(compile(text, application, "exec"), module.__dict__)
