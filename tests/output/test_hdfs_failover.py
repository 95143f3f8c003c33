"""Publishing in an HDFS with two name nodes, one of which takes over in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_ordered_ops.spec.writable import check_writable
from tests.support.hdfs_support import (
    NEW,
    OLD,
    NameNodes,
    available_hdfs,
    globbed_rows,
    hooked_doors,
    staged_names,
)
from tests.support.objects_support import hooked, named_rows, staged_rows

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def name_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameNodes]:
    """A running HDFS that this process knows by its nameservice alone."""
    with available_hdfs(tmp_path) as running:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
        hooked_doors(monkeypatch)
        yield running


def test_a_name_node_takes_over_in_the_middle_of_a_publication(name_nodes: NameNodes) -> None:
    """Before any operation of it: all of it goes on with the other one. At last the active one is killed."""

    def published_through(change: Callable[[], None], number: int) -> bool:
        root, left = f"hdfs://lake/{number}/orders", number

        def hook(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                change()

        check_writable(root)
        staged_rows(root, OLD, attempt=1).publish()
        staged = staged_rows(root, NEW, attempt=2)
        with hooked(hook):
            staged.publish()
        assert named_rows(root) == globbed_rows(root) == NEW
        assert named_rows(root.replace("//lake", "//")) == NEW
        assert staged_names(root) == []
        return left <= 0

    number = 1
    while published_through(name_nodes.fail_over, number):
        number += 6
    assert number > 24
    assert published_through(name_nodes.kill_active, 6)
