"""The public face: names, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import kafka_ordered_ops
from kafka_ordered_ops.core import errors


def test_importing_the_package_loads_no_client() -> None:
    """In a fresh interpreter: neither the Kafka client nor PySpark, nor pyarrow, only by using names."""
    code = (
        "import sys, kafka_ordered_ops, kafka_ordered_ops.spark\n"
        "heavy = {'confluent_kafka', 'pyspark', 'pyarrow', 'airflow', 'dagster'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_public_name_is_there() -> None:
    """The table of lazy names is exact, and the errors come along."""
    for name in kafka_ordered_ops.__all__:
        assert getattr(kafka_ordered_ops, name) is not None
    assert kafka_ordered_ops.WindowSupersededError is errors.WindowSupersededError
    assert set(kafka_ordered_ops.__all__) < set(dir(kafka_ordered_ops))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = kafka_ordered_ops.NoSuchError


def test_type_checkers_see_the_same_names() -> None:
    """What is imported for them alone is the table of lazy names, each from where the table says."""
    tree = ast.parse(Path(kafka_ordered_ops.__file__).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        (alias.asname, node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {(name, f"kafka_ordered_ops.{home}") for name, home in kafka_ordered_ops._HOMES.items()}
    assert seen == homes


def test_the_version_is_the_distributions() -> None:
    """One number, said in two places."""
    assert kafka_ordered_ops.__version__ == version("kafka-ordered-ops")
