"""The folder that one job writes to before it becomes an attempt's stage.

Two jobs may work for one attempt at the same time: a host lost contact with the first one, whose driver still runs, and
started it again. Their files do not mix: each has its own *draft*, which becomes the stage in one step once it is
complete. The stage is always a whole one of a single job; if both succeed, the later one's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.output.ports import Files
from kafka_ordered_ops.output.publisher import files_of, publisher_of
from kafka_ordered_ops.output.writing.staged_output import Facts, StagedOutput

_log = logging.getLogger(__name__)


def _token() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Draft:
    """The files that one job writes for a window, or for a part of it.

    Args:
        output: the output that the draft becomes.
    """

    output: StagedOutput
    token: str = field(default_factory=_token)

    @property
    def path(self) -> str:
        """The hidden folder that the job writes to."""
        return self.output.draft_path(self.token)

    @property
    def shared_path(self) -> str:
        """A hidden folder for files of several windows before they are separated; removed with this draft."""
        return self.output.shared_path(self.token)

    @property
    def files(self) -> Files:
        """The storage of the job's files."""
        return files_of(self.output.root, self.output.storage_options)

    def make(self) -> None:
        """Make the folder, empty.

        Raises:
            SinkError: the window's place is taken by another group's window, or by something that this package
                did not write; or the file system failed.
        """
        publisher = publisher_of(self.output)
        publisher.check_root(self.output)
        publisher.make([(self.output, self.token)])

    def seal(self, facts: Facts) -> StagedOutput:
        """Complete the draft: make its files durable, count their rows, then write the marker.

        Returns the output with its facts for the ledger; the stage exists once the draft has landed.

        Raises:
            SinkError: the folder was replaced, because the window was published meanwhile and the draft removed; or the
                file system failed.
        """
        return publisher_of(self.output).seal(self.output, self.token, facts)

    def land(self) -> None:
        """Make the sealed draft the attempt's stage; a stage of another job of the attempt is removed."""
        publisher_of(self.output).land([(self.output, self.token)])

    def drop(self) -> None:
        """Remove what the job has written; output that has landed stays. Repeating it changes nothing."""
        publisher_of(self.output).drop(self.output, self.token)


@contextmanager
def drafts_of(outputs: Sequence[StagedOutput]) -> Iterator[list[Draft]]:
    """Make drafts below one root, which the block writes and seals; if the block fails, all drafts are removed."""
    drafts = [Draft(output) for output in outputs]
    named = [(draft.output, draft.token) for draft in drafts]
    publisher = publisher_of(outputs[0])
    try:
        # All windows of a job are alike, and there may be thousands.
        publisher.check_root(outputs[0])
        publisher.make(named)
        yield drafts
        publisher.land(named)
    except BaseException:
        for draft in drafts:
            try:
                draft.drop()
            except SinkError as error:
                # The earlier error is more important; leftovers are removed with the window's next publication.
                _log.warning("%s", error)
        raise
