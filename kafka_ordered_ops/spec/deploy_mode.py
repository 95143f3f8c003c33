"""Where Spark's driver runs, and all the places where this can be set.

spark-submit uses the first of: its option, ``--conf`` and its file of settings, ``spark-defaults.conf``, and the
variable ``DEPLOY_MODE``. This package always sets the option, so spark-submit would silently ignore all other places.
Cluster mode in another place is refused instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError

MODE_KEY: Final = "spark.submit.deployMode"
MASTER_KEY: Final = "spark.master"

#: An option or a system property in a variable.
_ARGUMENTS: Final = re.compile(
    rf"--deploy-mode[\s=]+['\"]?(\w+)|{re.escape(MODE_KEY)}\s*=\s*['\"]?(\w+)"
)
#: Variables from which Spark's own programs take these arguments.
_VARIABLES: Final = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS")

#: A line of Java's properties: key and value are separated by a space, ``=`` or ``:``.
_PROPERTY: Final = re.compile(
    rf"^[ \t]*{re.escape(MODE_KEY)}[ \t]*[ \t=:][ \t]*(\S+)[ \t]*$", re.MULTILINE
)

#: Masters of Spark 1, which included the mode.
_OLD_MASTERS: Final = {"yarn-client": "CLIENT", "yarn-cluster": "CLUSTER"}


class DeployMode(StrEnum):
    """Where the driver runs: on this machine, as a child of spark-submit, or in the cluster."""

    CLIENT = "client"
    CLUSTER = "cluster"


def check_mode(mode: DeployMode | None, master: str | None, conf: Mapping[str, str]) -> None:
    """Check the deploy mode and the master that a caller passes.

    Raises:
        ConfigError: `conf` has another mode than `mode`, or the master does not support the mode.
    """
    master = master or conf.get(MASTER_KEY) or ""
    if master in _OLD_MASTERS:
        raise ConfigError(
            f"master {master!r} is not a master since Spark 2: use master='yarn' and "
            f"deploy_mode={_OLD_MASTERS[master].lower()!r}"
        )
    effective = str(conf.get(MODE_KEY, mode or DeployMode.CLIENT)).strip().lower()
    if effective != (mode or DeployMode.CLIENT):
        raise ConfigError(
            f"{MODE_KEY}={conf[MODE_KEY]} in the settings has no effect, because spark-submit runs with --deploy-mode "
            f"{mode or DeployMode.CLIENT}. {_WHAT_TO_DO}"
        )
    if mode is not DeployMode.CLUSTER or not master.startswith(("local", "spark://")):
        return
    kind = (
        "a local master has no cluster"
        if master.startswith("local")
        else "a standalone master runs no Python driver in the cluster"
    )
    raise ConfigError(
        f"master {master!r} with deploy mode 'cluster': {kind}. Use deploy_mode='client'"
    )


def check_surroundings(variables: Mapping[str, str], home: str | os.PathLike[str]) -> None:
    """Check that neither Spark's defaults nor variables ask for cluster mode, for a caller that does not set the mode.

    Args:
        variables: the environment of spark-submit.
        home: Spark's folder.

    Raises:
        ConfigError: one of them does, but spark-submit would run in client mode.
    """
    for where, mode in _set_elsewhere(variables, Path(home)):
        if mode.strip().lower() == DeployMode.CLUSTER:
            raise ConfigError(
                f"{where} asks for deploy mode 'cluster', but spark-submit would run with --deploy-mode client. "
                f"{_WHAT_TO_DO}"
            )


def check_in_process(conf: Mapping[str, object], variables: Mapping[str, str]) -> None:
    """Check the settings of a session in this process.

    Raises:
        ConfigError: they ask for a driver in the cluster.
    """
    settings = [(f"the setting {MODE_KEY}", str(conf.get(MODE_KEY, "")))]
    settings += _in_variables(variables)
    for where, mode in settings:
        if mode.strip().lower() == DeployMode.CLUSTER:
            raise ConfigError(
                f"{where} asks for deploy mode 'cluster', but this Spark session runs in this process, with its driver. "
                "Remove it. For a driver in the cluster, run an application with spark-submit and "
                "SparkSubmit(deploy_mode='cluster')"
            )


def _set_elsewhere(variables: Mapping[str, str], home: Path) -> Iterator[tuple[str, str]]:
    yield from _in_variables(variables)
    yield "the variable DEPLOY_MODE", variables.get("DEPLOY_MODE", "")
    defaults = Path(variables.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    try:
        text = defaults.read_text("utf-8", errors="replace")
    except OSError:
        # Spark does not find the file either, or reports the error itself.
        return
    for mode in _PROPERTY.findall(text)[-1:]:
        yield f"{defaults}", mode


def _in_variables(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the last mode in each of the variables."""
    modes = []
    for name in _VARIABLES:
        for option, setting in _ARGUMENTS.findall(variables.get(name, ""))[-1:]:
            modes.append((f"the variable {name}", option or setting))
    return modes


_WHAT_TO_DO: Final = (
    "By default the driver runs beside the task, which waits for it and reads its result from files. Pass "
    "deploy_mode='client' to run it here, or deploy_mode='cluster' to run it in the cluster: then "
    "the output folder must be one that the cluster's machines and this one share"
)
