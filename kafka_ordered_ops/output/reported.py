"""Results of jobs with their own sink, stored with the window."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core import strict_json

if TYPE_CHECKING:
    from kafka_ordered_ops.output.staged_output import StagedOutput

_log = logging.getLogger(__name__)

#: A function's result goes into the ledger and into hosts' databases: facts, not records.
RESULT_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True)
class Reported:
    """The result of a job with its own sink: there is nothing to publish."""

    result: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Mapping[str, Any]:
        """Return what the ledger stores."""
        return {"reported": dict(self.result)}

    def publish(self) -> None:
        """Do nothing: the job has published its output."""

    def discard(self) -> None:
        """Do nothing: the job's output is its own; the job runs again for the same window."""

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> Reported | None:
        """Return what an earlier attempt has reported."""
        reported = result.get("reported")
        return cls(reported) if isinstance(reported, Mapping) else None

    @classmethod
    def of(cls, returned: Any, facts: Mapping[str, Any] | None = None) -> Reported:
        """Return a function's result, with the known facts of its window.

        What JSON cannot hold, or what is too large, is left out with a line in the log: the sink has taken
        the records, and what the function says of them is for people.
        """
        result: dict[str, Any] = {} if facts is None else {"facts": dict(facts)}
        if returned is None:
            return cls(result)
        try:
            kept = strict_json.as_read_back(returned, limit_bytes=RESULT_BYTES_MAX)
        except strict_json.JsonError as error:
            _log.warning(
                "What the job returned (%s) is not stored with the window: %s. Return small JSON, such as counts.",
                type(returned).__name__,
                error,
            )
            return cls(result)
        return cls({**result, "returned": kept})


def found_output(
    result: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None
) -> Reported | StagedOutput | None:
    """Return what an earlier attempt reported or wrote, from its JSON in the ledger; None if it is gone."""
    from kafka_ordered_ops.output.staged_output import StagedOutput

    return Reported.found(result) or StagedOutput.found(result, storage_options)


def result_facts(result: Any) -> dict[str, Any]:
    """Return the counts and times that a sink of this package recorded with a window; empty otherwise."""
    if not isinstance(result, Mapping):
        return {}
    reported = result.get("reported")
    facts = (reported if isinstance(reported, Mapping) else result).get("facts")
    return dict(facts) if isinstance(facts, Mapping) else {}


def returned_by(result: Any) -> Any:
    """Return the result of a job with its own sink; None otherwise."""
    reported = result.get("reported") if isinstance(result, Mapping) else None
    return reported.get("returned") if isinstance(reported, Mapping) else None
