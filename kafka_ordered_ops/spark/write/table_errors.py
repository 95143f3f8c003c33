"""Errors of table formats: which mean "look again", and what the others become here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from kafka_ordered_ops.core.errors import JobFailedError, KafkaOrderedOpsError
from kafka_ordered_ops.spark.failures import named_error

#: Each turn but the last was lost to another commit of the same window, or of the same files.
TURNS_MAX: Final = 5

#: A statement's own words where another process has published the same rows meanwhile, and removed them.
GONE: Final = "kafka_ordered_ops: staged rows were deleted meanwhile"

T = TypeVar("T")

#: The formats' words for "another program has committed meanwhile: look again".
_CONFLICT: Final = re.compile(
    r"Concurrent\w+Exception|DELTA_CONCURRENT_|CommitFailedException|Found conflicting"
    # Iceberg's, of a reading: the table has moved on since Spark looked at it, a moment ago.
    r"|Failed to enforce scan consistency"
    # Iceberg's, of a publication that another program has made meanwhile.
    r"|DuplicateWAPCommitException|Duplicate request to cherry pick|already picked to create ancestor"
    rf"|{GONE}"
)

#: What an exception of the JVM says, in the text that Python sees of it.
_JVM_MESSAGE: Final = re.compile(r"^:? ?((?:[\w$]+\.)+\w*(?:Exception|Error): .*)$", re.MULTILINE)


@contextmanager
def table_errors(what: str) -> Iterator[None]:
    """Raise Spark's errors in the block as errors of this package: a task's own class, or `JobFailedError`."""
    try:
        yield
    except KafkaOrderedOpsError:
        raise
    except Exception as error:
        # Of Spark's own kinds or py4j's, which Connect does not have.
        named = named_error(error)
        if named is not None:
            raise named from error
        raise JobFailedError(
            f"{what}: {told_by(error)}. Nothing is lost: fix the cause and run the same window again"
        ) from error


def beside_others(action: Callable[[], T]) -> T:
    """Repeat what fails only because others have committed meanwhile."""
    for _ in range(TURNS_MAX):
        try:
            return action()
        except Exception as error:
            if not is_conflict(error):
                raise
    return action()


def is_conflict(error: BaseException) -> bool:
    """Return whether an error means that another program has committed meanwhile."""
    return _CONFLICT.search(str(error)) is not None


def told_by(error: BaseException) -> str:
    """Return the line of an error that says what happened."""
    text = str(error)
    if found := _JVM_MESSAGE.search(text):
        return found[1]
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
