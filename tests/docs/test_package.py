"""The public face: names, and what importing it costs."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import version

import pytest

import kafka_ordered_ops
from kafka_ordered_ops.core import errors
from tests.support.lazy_names import loaded_by, seen_by_type_checkers


def test_importing_the_package_loads_no_client() -> None:
    """In a fresh interpreter: neither the Kafka client nor PySpark, nor pyarrow, only by using names."""
    code = "import kafka_ordered_ops, kafka_ordered_ops.spark"
    heavy = ("confluent_kafka", "pyspark", "pyarrow", "airflow", "dagster")
    assert loaded_by(code, *heavy) == set()


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


@pytest.mark.parametrize("room", ["", ".spark", ".airflow", ".dagster"])
def test_no_public_name_is_a_modules(room: str) -> None:
    """A module is set on its package once it is imported, in place of a function of that name."""
    package = importlib.import_module(f"kafka_ordered_ops{room}")
    modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(package.__all__)


def test_the_version_is_the_distributions() -> None:
    """One number, said in two places."""
    assert kafka_ordered_ops.__version__ == version("kafka-ordered-ops")
