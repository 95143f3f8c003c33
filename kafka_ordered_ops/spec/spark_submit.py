"""How spark-submit runs: the program, its options, and its time limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.core.arguments import as_names, as_paths, check_choice, path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import masked, shown_fields
from kafka_ordered_ops.spec.deploy_mode import DeployMode, check_mode, check_surroundings
from kafka_ordered_ops.spec.spark_conf import check_setting_names

#: A job that runs for a day is stuck, or has windows that are better split.
TIMEOUT_S: Final = 24 * 3600.0

#: Time for Spark to close its context and to remove its temporary files, before it is killed.
GRACE_S: Final = 10.0


@dataclass(frozen=True, kw_only=True, repr=False)
class SparkSubmit:
    """How spark-submit runs.

    Args:
        master: as for spark-submit: ``local[4]``, ``spark://host:7077``, ``yarn``, ``k8s://…``. None means Spark's own
            configuration.
        deploy_mode: where the driver runs. A standalone master runs Python in client mode only. None means client
            mode, and is refused if Spark's defaults or the environment ask for cluster mode.
        conf: Spark settings. They are passed in a file that only this user can read, never on the command line.
        py_files: modules and zip archives for driver and executors.
        files: files for the executors' working folders.
        archives: archives to unpack there, as ``env.tar.gz#environment``.
        jars: class path for driver and executors.
        packages: Maven coordinates; prefer `jars`, since a job should not resolve dependencies.
        environment: more environment variables for spark-submit and the driver. Executors do not get them.
        program: the spark-submit to run; by default that of ``SPARK_HOME``, or of the installed pyspark.
        java_home: the Java to run on; by default ``JAVA_HOME``, or ``java`` from the path.
        timeout_s: how long a run may take.
        grace_s: how long Spark may take to exit before it is killed.

    Raises:
        ConfigError: a time that is not positive; an invalid Spark setting; cluster mode without a cluster; or settings
            with another deploy mode.
    """

    master: str | None = None
    deploy_mode: DeployMode | str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: Sequence[str | os.PathLike[str]] = ()
    files: Sequence[str | os.PathLike[str]] = ()
    archives: Sequence[str | os.PathLike[str]] = ()
    jars: Sequence[str | os.PathLike[str]] = ()
    packages: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str | os.PathLike[str] | None = None
    java_home: str | os.PathLike[str] | None = None
    timeout_s: float = TIMEOUT_S
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if self.deploy_mode is not None:
            chosen = check_choice(self.deploy_mode, DeployMode, what="deploy_mode")
            object.__setattr__(self, "deploy_mode", chosen)
        for name in ("py_files", "files", "archives", "jars"):
            # A single string is a list of one path, not of its letters.
            object.__setattr__(self, name, as_paths(getattr(self, name), what=name))
        object.__setattr__(self, "packages", as_names(self.packages, what="packages"))
        for name in ("program", "java_home"):
            text = path_text(value := getattr(self, name))
            if value is not None and (not text or "\0" in text):
                raise ConfigError(f"{name} is {shown(value)}: give a path")
        for name in ("timeout_s", "grace_s"):
            # A time limit of NaN would never pass.
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
                raise ConfigError(f"{name} is {shown(value)}: give seconds")
        for name in ("conf", "environment"):
            # The message omits the value, which may contain a secret.
            if not isinstance(value := getattr(self, name), Mapping):
                raise ConfigError(f"{name} is a {type(value).__name__}: give a mapping of texts")
        _check_variables(self.environment)
        if self.timeout_s <= 0 or self.grace_s < 0:
            raise ConfigError(
                f"timeout_s={self.timeout_s} must be positive, grace_s={self.grace_s} not negative"
            )
        check_setting_names(self.conf)
        mode = None if self.deploy_mode is None else DeployMode(self.deploy_mode)
        check_mode(mode, self.master, self.conf)

    def __repr__(self) -> str:
        changed = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if getattr(self, option.name) != option.default
        }
        return shown_fields(self, **{name: masked(value) for name, value in changed.items()})

    @property
    def command(self) -> str:
        """The path of the spark-submit to run.

        Raises:
            ConfigError: there is none; or no deploy mode is set, and its surroundings ask for cluster mode.
        """
        if self.program is not None:
            path = Path(self.program)
        elif (home := self.environment.get("SPARK_HOME") or os.environ.get("SPARK_HOME")) or (
            home := pyspark_home()
        ) is not None:
            path = Path(home, "bin", "spark-submit")
        else:
            raise ConfigError(
                "there is no spark-submit: set SPARK_HOME, pass its path as program=, or pip install "
                "'kafka-ordered-ops[spark]'"
            )
        if not os.access(path, os.X_OK):
            raise ConfigError(f"there is no spark-submit at {path} that can be run")
        if self.deploy_mode is None:
            variables = {**os.environ, **self.environment}
            check_surroundings(
                variables, variables.get("SPARK_HOME") or path.resolve().parent.parent
            )
        return str(path)

    def options(self) -> list[str]:
        """Return the options of spark-submit, without Spark settings."""
        lists = {
            "--py-files": self.py_files,
            "--files": self.files,
            "--archives": self.archives,
            "--jars": self.jars,
            "--packages": self.packages,
        }
        options = [] if self.master is None else ["--master", self.master]
        options += ["--deploy-mode", str(self.deploy_mode or DeployMode.CLIENT)]
        for name, values in lists.items():
            if values:
                options += [name, ",".join(os.fspath(value) for value in values)]
        return options

    def variables(self) -> dict[str, str]:
        """Return the environment of spark-submit."""
        variables = {**os.environ, **self.environment}
        if self.java_home is not None:
            variables["JAVA_HOME"] = os.fspath(self.java_home)
        names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
        settings = ("spark.pyspark.python", "spark.pyspark.driver.python")
        if not any(name in variables for name in names) and not self.conf.keys() & set(settings):
            variables["PYSPARK_PYTHON"] = sys.executable
        return variables


def _check_variables(environment: Mapping[Any, Any]) -> None:
    """Raise `ConfigError` for invalid environment variables; messages omit values, which may be secrets."""
    for name, value in environment.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ConfigError(
                f"environment has {shown(name)} in it, which is not a valid name of a variable"
            )
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(
                f"the environment variable {name} is a {type(value).__name__}: give a text without a NUL"
            )


def submit_of(options: SparkSubmit | Mapping[str, Any] | None) -> SparkSubmit | None:
    """Return the options of spark-submit, also from a mapping of arguments; raise `ConfigError` for invalid ones."""
    if options is None or isinstance(options, SparkSubmit):
        return options
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"submit is {shown(options)}: give a SparkSubmit, or a mapping of its arguments"
        )
    known = [argument.name for argument in fields(SparkSubmit)]
    for name in options:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(
                f"submit has {shown(name)} in it, which SparkSubmit does not have{hint}"
            )
    try:
        return SparkSubmit(**options)
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"submit= is invalid: {error}") from error


def pyspark_home() -> str | None:
    """Return the folder of the installed pyspark, which includes spark-submit; None if pyspark is not installed."""
    try:
        spec = find_spec("pyspark")
    except ValueError:
        return None
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)
