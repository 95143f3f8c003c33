"""The driver's main program in client mode: it ties the driver to its submitter, then runs the user's application.

The application sees the same environment as without this program: its own ``sys.argv``, its folder first on
``sys.path``, and ``__main__``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from kafka_ordered_ops.spark.applications.parent_watch import die_with_parent, watch
from kafka_ordered_ops.spark.applications.result import JobError

#: The file that spark-submit is given. It is in the folder of the run, so that it finds that folder, and
#: that Python's path begins with a folder in which no file has the name of a module.
MAIN_NAME: Final = "main.py"
MAIN: Final = """\
from kafka_ordered_ops.spark.applications.driver import main

main(__file__)
"""


def main(started: str) -> None:
    """Run the application that ``sys.argv[1]`` names, with the arguments that follow."""
    die_with_parent()
    folder = Path(started).resolve().parent
    watch(folder, parent=os.getppid())
    del sys.argv[0]
    try:
        _run(sys.argv[0])
    except Exception as error:
        with contextlib.suppress(OSError):  # the folder is gone when the job was given up
            JobError.of(error).write(folder)
        raise


def _run(application: str) -> None:
    sys.path[0] = os.path.dirname(application)
    module = ModuleType("__main__")
    module.__file__ = application
    # Functions of a job reach the executors by their text because they are of `__main__`.
    sys.modules["__main__"] = module
    exec(compile(Path(application).read_bytes(), application, "exec"), module.__dict__)
