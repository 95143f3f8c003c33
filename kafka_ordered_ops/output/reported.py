"""Jobs with a sink of their own: what they say of it, kept with the window."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core import strict_json

if TYPE_CHECKING:
    from kafka_ordered_ops.output.staged_output import StagedOutput

_log = logging.getLogger(__name__)

#: What a function returns goes into the ledger and into hosts' own stores: facts, not records.
RESULT_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True)
class Reported:
    """The result of a job that has a sink of its own: there is nothing to publish."""

    result: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Mapping[str, Any]:
        """What the ledger keeps."""
        return {"reported": dict(self.result)}

    def publish(self) -> None:
        """The job has done so."""

    def discard(self) -> None:
        """Whatever the job wrote is its own business: it runs again for the same window."""

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> Reported | None:
        """What an earlier attempt has reported."""
        reported = result.get("reported")
        return cls(reported) if isinstance(reported, Mapping) else None

    @classmethod
    def of(cls, returned: Any, facts: Mapping[str, Any] | None = None) -> Reported:
        """What a function has returned, with the facts that are known of its window.

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
                "What the job returned (%s) is not kept with the window: %s. Return a little JSON, as counts.",
                type(returned).__name__,
                error,
            )
            return cls(result)
        return cls({**result, "returned": kept})


def found_output(result: Mapping[str, Any]) -> Reported | StagedOutput | None:
    """What an earlier attempt has reported or written, from what the ledger keeps of it; None where it is gone."""
    from kafka_ordered_ops.output.staged_output import StagedOutput

    return Reported.found(result) or StagedOutput.found(result)


def result_facts(result: Any) -> dict[str, Any]:
    """Count and times that a sink of this package has written down with a window; else nothing."""
    if not isinstance(result, Mapping):
        return {}
    reported = result.get("reported")
    facts = (reported if isinstance(reported, Mapping) else result).get("facts")
    return dict(facts) if isinstance(facts, Mapping) else {}


def returned_by(result: Any) -> Any:
    """What a job with a sink of its own has returned; else None."""
    reported = result.get("reported") if isinstance(result, Mapping) else None
    return reported.get("returned") if isinstance(reported, Mapping) else None
