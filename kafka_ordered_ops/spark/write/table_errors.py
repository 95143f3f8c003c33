"""Errors of table formats: which ones to retry, and how the others are raised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from kafka_ordered_ops.core.errors import ConfigError, JobFailedError, KafkaOrderedOpsError
from kafka_ordered_ops.spark.failures import named_error

#: The number of tries; each but the last lost to another commit of the same window or the same files.
TURNS_MAX: Final = 5

#: The error of our statement if another process has published the same rows and removed them.
GONE: Final = "kafka_ordered_ops: staged rows were deleted meanwhile"

T = TypeVar("T")

#: The formats' errors for a conflicting commit of another program: retry.
_CONFLICT: Final = re.compile(
    r"Concurrent\w+Exception|DELTA_CONCURRENT_|CommitFailedException|Found conflicting"
    # Iceberg, on reading: the table has changed since Spark read its metadata.
    r"|Failed to enforce scan consistency"
    # Iceberg, on publishing: another program has published the same in the meantime.
    r"|DuplicateWAPCommitException|Duplicate request to cherry pick|already picked to create ancestor"
    rf"|{GONE}"
)

#: The errors of Spark and Delta, before a job runs, for a column that cannot be stored in the table's.
_MISFIT: Final = re.compile(
    r"INCOMPATIBLE_DATA_FOR_TABLE|DELTA_FAILED_TO_MERGE_FIELDS|DATATYPE_MISMATCH"
)

#: The message of a JVM exception, in the text that Python gets.
_JVM_MESSAGE: Final = re.compile(r"^:? ?((?:[\w$]+\.)+\w*(?:Exception|Error): .*)$", re.MULTILINE)


@contextmanager
def table_errors(what: str) -> Iterator[None]:
    """Raise Spark's errors in the block as errors of this package: a task's own class, or `JobFailedError`."""
    try:
        yield
    except KafkaOrderedOpsError:
        raise
    except Exception as error:
        # An error of Spark or py4j, which Connect does not have.
        named = named_error(error)
        if named is not None:
            raise named from error
        raise JobFailedError(
            f"{what}: {told_by(error)}. Nothing is lost: fix the cause and run the same window again"
        ) from error


@contextmanager
def fitting_errors(table: str) -> Iterator[None]:
    """Raise `ConfigError` if a result's types do not fit a table."""
    try:
        yield
    except Exception as error:
        if not _MISFIT.search(str(error)):
            raise
        raise ConfigError(
            f"the result does not fit the table {table}: {told_by(error)}. Cast its columns, or alter the table"
        ) from error


def beside_others(action: Callable[[], T]) -> T:
    """Retry an action that fails only because others have committed in the meantime."""
    for _ in range(TURNS_MAX):
        try:
            return action()
        except Exception as error:
            if not is_conflict(error):
                raise
    return action()


def is_conflict(error: BaseException) -> bool:
    """Return whether an error means that another program has committed in the meantime."""
    return _CONFLICT.search(str(error)) is not None


def told_by(error: BaseException) -> str:
    """Return the line of an error that describes the failure."""
    text = str(error)
    if match := _JVM_MESSAGE.search(text):
        return match[1]
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
