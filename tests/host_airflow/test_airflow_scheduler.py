"""The scheduler of the tests' Airflow is started again for a fault of its own database, and for nothing of ours."""

from __future__ import annotations

import pytest

from tests.support.airflow_scheduler import own_fault

_STALE = "sqlalchemy.orm.exc.StaleDataError: UPDATE statement on table 'dag_run' expected 1 row(s)"
_DELETED = "sqlalchemy.orm.exc.ObjectDeletedError: Instance '<DagRun at 0x7fcd>' has been deleted"


@pytest.mark.parametrize("fault", [_STALE, _DELETED])
@pytest.mark.parametrize("begin", ["scheduler  | ", "\x1b[34mscheduler \x1b[0m | ", ""])
def test_a_fault_of_its_database_is_the_reason(begin: str, fault: str) -> None:
    """Whether Airflow started it, with a name before its lines, or the test did."""
    log = f"{begin}Traceback (most recent call last):\n{begin}{fault}\n{begin}Exited execute loop\n"
    assert own_fault(log) == fault.removeprefix("sqlalchemy.orm.exc.")


@pytest.mark.parametrize(
    "log",
    [
        "scheduler  | Exiting gracefully upon receiving signal 15\n",
        f"api-server | {_STALE}\n",
        f'scheduler  | File "/site-packages/kafka_ordered_ops/airflow/compat.py"\nscheduler  | {_STALE}\n',
        f"scheduler  | {_STALE}\n" + "scheduler  | a line\n" * 1000,
    ],
)
def test_nothing_else_is_a_reason(log: str) -> None:
    """Another part's fault, one with a frame of this package, and one that it survived long ago."""
    assert own_fault(log) is None
