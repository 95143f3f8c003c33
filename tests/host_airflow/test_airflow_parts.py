"""A window in parts: mapped tasks that share it, and one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import PartsMissingError
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import committed, rows_in, small_json
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.airflow_tasks import Tasks
from tests.support.airflow_tasks import tasks as tasks
from tests.support.stages import stages_of
from tests.support.windows_support import BASE_MS


@pytest.fixture
def wide(tasks: Tasks, topic: MakeTopic, produce: Produce) -> Tasks:
    """Tasks for a topic of three partitions with a hundred records before second 25."""
    tasks.topic = topic(partitions=3)
    produce((tasks.topic, n % 3, None, b"x", BASE_MS + n * 10, ()) for n in range(100))
    return tasks


@pytest.mark.slow
def test_parts_are_joined_and_committed_once(wide: Tasks, windows: OrderedWindows) -> None:
    """One missing: nothing is committed, to be tried again. All there: each record once."""
    told = wide.plan(parts=4)
    assert [one["part"] for one in told] == [0, 1, 2, 3]
    assert small_json(told) / len(told) < 500
    results = [wide.part(one) for one in told[:3]]
    assert [one["part"] for one in results] == [0, 1, 2]
    assert small_json(results[0]) < 2_000
    with pytest.raises(PartsMissingError, match="1 have not reported: 4"):
        wide.commit(told)
    assert committed(windows, wide.topic, 3) == [None] * 3
    wide.part(told[3])
    facts = wide.commit(told)
    assert (facts["records"], facts["status"]) == (100, "published")
    rows = rows_in(facts["output"])
    assert sorted(rows) == sorted((n % 3, n // 3) for n in range(100))
    assert committed(windows, wide.topic, 3) == [34, 33, 33]
    assert not list(stages_of(wide.folder / "out").glob("*/*"))
    assert wide.commit(told) == facts


@pytest.mark.slow
def test_parts_with_sinks_of_their_own(wide: Tasks) -> None:
    """What they say is kept in their order, and their counts are added up."""
    told = wide.plan(parts=3)
    for one in reversed(told):
        wide.part(one, job=lambda window: [window.plan.part.index, len(window.to_arrow())])
    facts = wide.commit(told, output=None)
    assert (facts["records"], facts["status"]) == (100, "published")
    assert [index for index, _ in facts["result"]] == [0, 1, 2]
    assert sum(count for _, count in facts["result"]) == 100
    assert wide.commit(told, output=None) == facts


@pytest.mark.slow
def test_a_part_is_tried_again(wide: Tasks) -> None:
    """The part that failed alone; and one that runs twice is counted once."""
    told = wide.plan(parts=2)

    def fail(*_: Any) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        wide.part(told[0], job=fail)
    for one in (told[0], told[1], told[1]):
        wide.part(one)
    facts = wide.commit(told)
    assert len(rows_in(facts["output"])) == facts["records"] == 100


@pytest.mark.slow
def test_parts_of_a_plan_that_was_taken_up_again(wide: Tasks) -> None:
    """The older plan's parts report for nobody; the newer may be split in another way."""
    old = wide.plan(parts=2)
    wide.part(old[0])
    new = wide.plan(parts=3, try_number=2)
    with pytest.raises(AirflowFailException, match="WindowSupersededError"):
        wide.part(old[1])
    for one in new:
        wide.part(one)
    assert wide.commit(new)["records"] == 100


@pytest.mark.slow
def test_parts_are_replayed(wide: Tasks, windows: OrderedWindows) -> None:
    """Cleared with the plan, the parts' new outputs take the place of the older ones."""
    told = wide.plan(parts=2)
    for one in told:
        wide.part(one)
    wide.commit(told)
    again = wide.plan(parts=3, try_number=2)
    for one in again:
        wide.part(one)
    facts = wide.commit(again)
    assert (facts["records"], facts["status"]) == (100, "published")
    rows = rows_in(facts["output"])
    assert sorted(rows) == sorted((n % 3, n // 3) for n in range(100))
    # Three parts have written it, each a file at least.
    names = {path.name.split("-")[1] for path in Path(facts["output"]).glob("part-*")}
    assert names == {"00000", "00001", "00002"}
    assert committed(windows, wide.topic, 3) == [34, 33, 33]


def test_a_job_on_a_whole_window_as_if_it_were_a_part(tasks: Tasks) -> None:
    """Or on all parts at once: the error says how to expand it."""
    for told in (tasks.plan(12), tasks.plan(window_id="split", parts=2)):
        with pytest.raises(AirflowFailException, match=r"ConfigError: .*not a part:"):
            tasks.part(told)


@pytest.mark.slow
def test_outputs_of_parts_that_are_gone(wide: Tasks, windows: OrderedWindows) -> None:
    """The window is not committed without them."""
    told = wide.plan(parts=2)
    for one in told:
        wide.part(one)
    for folder in stages_of(wide.folder / "out").glob("*/*part-00001*"):
        folder.rename(wide.folder / "moved away")
    with pytest.raises(
        AirflowFailException, match=r"SinkError: .*the files of its parts are missing"
    ):
        wide.commit(told)
    assert committed(windows, wide.topic, 3) == [None] * 3
