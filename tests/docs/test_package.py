"""The public face: names, and what importing it costs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import ANY

import pytest

import kafka_ordered_ops
from kafka_ordered_ops.core import errors
from tests.support.lazy_names import loaded_by, seen_by_type_checkers


def test_importing_the_package_loads_no_client() -> None:
    """In a fresh interpreter: neither the Kafka client nor PySpark, nor pyarrow, only by using names."""
    code = "import kafka_ordered_ops, kafka_ordered_ops.spark"
    heavy = ("confluent_kafka", "pyspark", "pyarrow", "airflow", "dagster")
    assert loaded_by(code, *heavy) == set()


@pytest.mark.slow
def test_a_window_without_spark_loads_nothing_of_the_room_for_it(tmp_path: Path) -> None:
    """Neither a copy nor a function, planned, committed and published."""
    code = f"""
from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.testing import InMemoryKafka

with InMemoryKafka() as kafka:
    kafka.create_topic("orders")
    kafka.produce("orders", timestamp_ms=1_700_000_000_000, value=b"x")
    with OrderedWindows(kafka.settings, "g") as windows:
        hour = Window("orders", cutoff="2023-11-15T00:00Z", starting_offsets="earliest")
        windows.run(hour, "{tmp_path}/copied")
        later = Window("orders", cutoff="2023-11-16T00:00Z")
        windows.run(later, "{tmp_path}/made", job=lambda window: window.write(window.to_arrow()))
import kafka_ordered_ops.delivery, sys
loaded = [name for name in sys.modules if name.startswith("kafka_ordered_ops.spark")]
assert not loaded, loaded
"""
    assert loaded_by(code, "pyspark") == set()


def test_every_public_name_is_there() -> None:
    """The table of lazy names is exact, and the errors come along."""
    for name in kafka_ordered_ops.__all__:
        assert getattr(kafka_ordered_ops, name) is not None
    assert kafka_ordered_ops.WindowSupersededError is errors.WindowSupersededError
    assert set(kafka_ordered_ops.__all__) < set(dir(kafka_ordered_ops))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = kafka_ordered_ops.NoSuchError  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names() -> None:
    """What is imported for them alone is the table of lazy names, each from where the table says."""
    homes = {(name, f"kafka_ordered_ops.{home}") for name, home in kafka_ordered_ops._HOMES.items()}
    all_errors = {("errors", "kafka_ordered_ops.core"), (None, "kafka_ordered_ops.core.errors")}
    assert seen_by_type_checkers(kafka_ordered_ops) == homes | all_errors


@pytest.mark.parametrize(
    "room", ["", ".airflow", ".dagster", ".decoding", ".output", ".processing", ".relay", ".spark"]
)
def test_no_public_name_is_a_modules(room: str) -> None:
    """A module is set on its package once it is imported, in place of a function of that name."""
    package = importlib.import_module(f"kafka_ordered_ops{room}")
    modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(package.__all__)


@pytest.mark.skipif(
    not find_spec("airflow") or not find_spec("dagster"),
    reason="the environment of the older Spark has no hosts",
)
def test_there_are_few_public_names() -> None:
    """At most 84 over all rooms, and none of the insides among them."""
    rooms = (
        "",
        ".spark",
        ".output",
        ".processing",
        ".airflow",
        ".dagster",
        ".testing",
        ".embedded",
    )
    names = [
        name
        for room in rooms
        for name in importlib.import_module(f"kafka_ordered_ops{room}").__all__
    ]
    assert len(names) == len(set(names)) <= 84
    assert {"OffsetSet", "PartitionPlan", "TopicPartition"}.isdisjoint(names)
    for inside in ("OffsetSet", "PartitionPlan"):
        assert not hasattr(kafka_ordered_ops, inside)


def test_what_the_reference_shows_is_there() -> None:
    """Each object of the API's page, with the members that the page names, importable from where it is shown."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    shown = re.findall(r"^\.\. auto(?:class|function):: (\S+)\n((?:   :.*\n)*)", page, re.MULTILINE)
    assert len(shown) > 40
    for path, options in shown:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        if members := re.search(r":members: (.+)", options):
            for member in members[1].split(", "):
                assert hasattr(found, member) or member in found.__annotations__, f"{path}.{member}"
    for room in ("", ".spark"):
        package = importlib.import_module(f"kafka_ordered_ops{room}")
        for name in set(package.__all__) - {"errors"}:
            assert (f"kafka_ordered_ops{room}.{name}", ANY) in shown, name


def test_the_version_is_the_distributions() -> None:
    """One number, said in two places."""
    assert kafka_ordered_ops.__version__ == version("kafka-ordered-ops")
