"""The results of jobs with their own sink, which are stored with the window."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.window.dead_letters import (
    DeadLetters,
    dead_letters_in,
    with_dead_letters,
)
from kafka_ordered_ops.output.versions import check_output_version

if TYPE_CHECKING:
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput

_log = logging.getLogger(__name__)

#: Version of the JSON that the ledger keeps.
_VERSION: Final = 1

#: A function's result is stored in the ledger and in the hosts' databases: facts, not records.
RESULT_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True)
class Reported:
    """The result of a job with its own sink: there is nothing to publish."""

    result: Mapping[str, Any] = field(default_factory=dict)
    #: The records that the job has not seen, because they become dead letters.
    dead_letters: DeadLetters | None = None

    def to_json(self) -> Mapping[str, Any]:
        """Return versioned JSON: what the ledger stores."""
        result = {"version": _VERSION, "reported": dict(self.result)}
        return with_dead_letters(result, self.dead_letters)

    def publish(self) -> None:
        """Do nothing: the job has published its output."""

    def discard(self) -> None:
        """Do nothing: the job owns its output, and runs again for the same window."""

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> Reported | None:
        """Return the result that an earlier attempt reported; None for the result of another sink.

        Raises:
            OutputVersionError: a newer version of this package wrote it.
        """
        what = "the ledger's record of what a window's job reported"
        check_output_version(result, _VERSION, ("reported",), what)
        reported = result.get("reported")
        if result.get("version") != _VERSION or not isinstance(reported, Mapping):
            return None
        return cls(reported, dead_letters_in(result))

    @classmethod
    def of(cls, returned: Any, facts: Mapping[str, Any] | None = None) -> Reported:
        """Return a function's result, with the known facts of its window.

        A result that is too large, or cannot be stored as JSON, is left out and logged: the sink has the records, and
        the function's result is for people.
        """
        result: dict[str, Any] = {} if facts is None else {"facts": dict(facts)}
        if returned is None:
            return cls(result)
        try:
            stored = strict_json.as_read_back(returned, limit_bytes=RESULT_BYTES_MAX)
        except strict_json.JsonError as error:
            _log.warning(
                "What the job returned (%s) is not stored with the window: %s. Return small JSON, such as counts.",
                type(returned).__name__,
                error,
            )
            return cls(result)
        return cls({**result, "returned": stored})


@dataclass(frozen=True)
class PublishedElsewhere:
    """The output of a window that was published to another place than the current root: there is nothing to do."""

    result: Mapping[str, Any]

    def to_json(self) -> Mapping[str, Any]:
        """Return what the ledger stores."""
        return self.result

    def publish(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class EarlierOutputs:
    """Find what earlier attempts reported, or wrote below a root, by their JSON in the ledger.

    The ledger is a hint: only the caller's root is read.

    Args:
        root: the root of the outputs; None if jobs have their own sinks.
        storage_options: credentials and settings of an object store.
    """

    root: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __call__(self, result: Mapping[str, Any]) -> Reported | StagedOutput | None:
        """Return an output; None if it is gone, or not below the root."""
        if (reported := Reported.found(result)) is not None or self.root is None:
            return reported
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        return StagedOutput.found(result, self.storage_options, root=self.root)

    def left(self, result: Mapping[str, Any]) -> StagedOutput | None:
        """Return the output of another window of the group, if it was written below the root.

        The caller did not ask for that window, so an output in a copy of its root is not published to readers of the copy.
        """
        output = self(result) if self._is_of_root(result) else None
        return None if isinstance(output, Reported) else output

    def elsewhere(self, result: Mapping[str, Any]) -> PublishedElsewhere | None:
        """Return the output of a window that was published to another place; None for an output of the root."""
        return None if self._is_of_root(result) else PublishedElsewhere(result)

    def _is_of_root(self, result: Mapping[str, Any]) -> bool:
        from kafka_ordered_ops.output.filesystem import normal_root

        parts = result.get("parts")
        first = parts[0] if isinstance(parts, list) and parts else result
        root = first.get("root") if isinstance(first, Mapping) else None
        return self.root is not None and root == normal_root(self.root)


def result_facts(result: Any) -> dict[str, Any]:
    """Return the counts and times that a sink of this package recorded with a window; empty otherwise."""
    if not isinstance(result, Mapping):
        return {}
    reported = result.get("reported")
    facts = (reported if isinstance(reported, Mapping) else result).get("facts")
    letters = dead_letters_in(result)
    return {
        **(facts if isinstance(facts, Mapping) else {}),
        **({} if letters is None else {"dead_letters": len(letters.records)}),
    }


def returned_by(result: Any) -> Any:
    """Return the result of a job with its own sink; None otherwise."""
    reported = result.get("reported") if isinstance(result, Mapping) else None
    return reported.get("returned") if isinstance(reported, Mapping) else None
