"""What tests of whole hosts need for windows in an object store: a server, and Spark 4.1, for which the jars are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.test_spark_objects import conf_with_keys as store_conf
from tests.support.host_kills import STORE_PID
from tests.support.object_servers import versitygw

_ROOT: Final = Path(__file__).parents[2]
#: The environment that `make test-spark41` makes.
_SPARK41: Final = _ROOT / ".venv-spark41"


@dataclass(frozen=True)
class LakeSide:
    """A store that is running, and the environment of a host whose tasks write to it."""

    output: Path
    options: dict[str, Any]
    variables: dict[str, str]


@contextmanager
def lake_side(output: Path) -> Iterator[LakeSide]:
    """A store that starts again whenever it is killed, and a host's Spark 4.1, for which there are jars.

    Args:
        output: the folder by which tasks and their test talk.
    """
    output.mkdir(parents=True)
    with versitygw(output.parent / "store" / "data", output / STORE_PID) as server:
        variables = {
            "PYTHONPATH": f"{_spark41(output.parent / 'spark41')}:{_ROOT}",
            "SCENARIO_STORE": json.dumps(server.options),
            "SCENARIO_STORE_CONF": json.dumps(store_conf(server.options)),
        }
        yield LakeSide(output, server.options, variables)


def _spark41(folder: Path) -> Path:
    """A folder for the front of a path of modules: the host then has this pyspark instead of its own."""
    if not (packages := next(_SPARK41.glob("lib/python3*/site-packages"), None)):
        raise RuntimeError(
            f"there is no {_SPARK41}: run make test-spark41, or test-all, which needs it too"
        )
    folder.mkdir(parents=True)
    for name in ("pyspark", "pyspark-*.dist-info", "py4j", "py4j-*.dist-info"):
        [found] = packages.glob(name)
        (folder / found.name).symlink_to(found)
    return folder


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSide]:
    """The store, and the host's environment."""
    with lake_side(tmp_path_factory.mktemp("lakes") / "output") as found:
        yield found
