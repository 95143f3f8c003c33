"""The Dagster room from outside: its names, and what importing it costs."""

from __future__ import annotations

import pkgutil
import runpy
from pathlib import Path

import dagster as dg
import pytest

import kafka_ordered_ops.dagster as room
from tests.support.lazy_names import loaded_by, seen_by_type_checkers


def test_importing_the_package_loads_no_dagster() -> None:
    """Its names are loaded when they are first used."""
    assert loaded_by("import kafka_ordered_ops.dagster", "dagster", "pyspark") == set()


@pytest.mark.slow
def test_importing_every_module_loads_nothing_heavy() -> None:
    """Nor numpy: every `dg` command loads every code location, and every registered package."""
    modules = [one.name for one in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    code = "\n".join(f"import {name}" for name in modules)
    heavy = ("confluent_kafka", "matplotlib", "numpy", "pyarrow", "pyspark")
    assert loaded_by(code, "dagster", *heavy) == {"dagster"}


def test_the_lazy_names_are_exact() -> None:
    """The table, what is imported for type checkers alone, and what `dir` gives."""
    homes = {(name, f"kafka_ordered_ops.{home}") for name, home in room._HOMES.items()}
    assert seen_by_type_checkers(room) == homes
    for name in room.__all__:
        assert getattr(room, name) is not None
    assert dir(room) == room.__all__
    with pytest.raises(AttributeError, match="no attribute"):
        _ = room.NoSuchName  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["dagster_lakes", "dagster_scenarios"])
def test_the_definitions_of_a_whole_dagster_load(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A parameter that is no more is found here, and not by the slowest of all tests."""
    for variable, value in {
        "SCENARIO_RUN": "run",
        "SCENARIO_OUTPUT": str(tmp_path),
        "SCENARIO_STORE": "{}",
        "SCENARIO_NOBODY": "nobody:9092",
        "SPARK_MASTER": "local[1]",
    }.items():
        monkeypatch.setenv(variable, value)
    defined = runpy.run_path(str(Path(__file__).parents[1] / "support" / f"{name}.py"))
    assert isinstance(defined["defs"], dg.Definitions)
