"""The folder that one job writes to before it becomes an attempt's stage.

Two jobs may work for one attempt at once: a host lost sight of the first one, whose driver lives on, and started
it again. Their files do not mix: each has its own *draft*, which becomes the stage in one step once it is
complete. The stage is always one job's, whole; of two that end well, the later one's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.output.contents import Holding, count
from kafka_ordered_ops.output.filesystem import (
    UNDER_WAY_NAME,
    LocalFiles,
    as_sink_error,
    files_for,
    is_own_folder,
    marker_path,
    remove_stage,
)
from kafka_ordered_ops.output.ownership import under_way
from kafka_ordered_ops.output.parts import take_part_back
from kafka_ordered_ops.output.staged_output import Facts, StagedOutput

_log = logging.getLogger(__name__)


def _token() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Draft:
    """The files that one job writes for a window, or for a part of it.

    Args:
        output: what it is to become.
    """

    output: StagedOutput
    token: str = field(default_factory=_token)

    @property
    def path(self) -> str:
        """The hidden folder that the job writes to."""
        return f"{self.output.stage_path}~draft-{self.token}"

    @property
    def shared_path(self) -> str:
        """A hidden folder for files of several windows, before they are distinguished; gone with this draft."""
        return f"{self.output.stage_path}~shared-{self.token}"

    def make(self) -> None:
        """Make the folder, empty.

        Raises:
            SinkError: the window's place is taken by another group's window, or by something that this package
                did not write; or the file system failed.
        """
        output, files = self.output, files_for(self.output.root)
        # Locked: another job that ends may remove the window's folder, if it is empty.
        with (
            as_sink_error(f"the stage {self.path} cannot be made"),
            files.locked(output.stages_folder),
        ):
            output.check_place(files)
            self._check_stage(files)
            files.make_folder(self.path)
            files.write(f"{self.path}/{UNDER_WAY_NAME}", under_way(output.group_id))

    def seal(self, facts: Facts) -> StagedOutput:
        """Complete the draft: make its files durable, count what they hold, then write the marker.

        Returns the output with its facts, as the ledger keeps it; it is there once the draft has landed.

        Raises:
            SinkError: the folder is not the one that was made: the window was published meanwhile, and what
                was in it removed; or the file system failed.
        """
        sealed = replace(self.output, facts=dict(facts))
        files = files_for(self.output.root)
        with as_sink_error(f"the stage {self.path} cannot be completed"):
            # What Spark's tasks write later makes the folder again, and it would hold a part of the records.
            if not files.exists(flag := f"{self.path}/{UNDER_WAY_NAME}"):
                raise SinkError(
                    f"window {self.output.window_id}: {self.path} was removed while this job wrote to it. Another "
                    f"job of attempt {self.output.attempt} was published meanwhile, or the window was abandoned: leave "
                    "it to that job",
                    window_id=self.output.window_id,
                )
            files.settle(self.path)
            holding = count(files, self.path)
            self._check_rows(holding, facts.get("records"))
            sealed = replace(self.output, facts=dict(facts), holding=holding)
            files.write(marker_path(self.path), sealed.marker())
            files.remove(flag)
        return sealed

    def _check_rows(self, holding: Holding, records: int | None) -> None:
        # A window without rows has a file, too: readers find the columns in it.
        if holding.files and (records is None or holding.rows in (None, records)):
            return
        raise SinkError(
            f"window {self.output.window_id}: {records or 0:,} rows were written to {self.path}, and the {holding.files:,} "
            f"files that this process sees there hold {holding.rows or 0:,}. Some executors write to a folder that this "
            "process does not see: use a folder that the driver and all executors share, and check that it is mounted on each "
            "of them. Nothing was committed",
            window_id=self.output.window_id,
            records=records,
            found=holding.rows or 0,
        )

    def _check_stage(self, files: LocalFiles) -> None:
        """Raise `SinkError` when the stage is not this package's: it would have to go for the new one."""
        path = self.output.stage_path
        if files.exists(path) and not is_own_folder(files, path):
            raise SinkError(
                f"{path} is in the way: this package did not create it. Move it away, then run the window again",
                window_id=self.output.window_id,
            )

    def land(self) -> None:
        """Make the sealed draft the attempt's stage; what another job of the attempt made of it before goes."""
        output, aside = self.output, f"{self.output.stage_path}~older-{self.token}"
        files = files_for(output.root)
        with (
            as_sink_error(f"the stage {output.stage_path} cannot be completed"),
            files.locked(output.stages_folder),
        ):
            output.check_place(files)
            self._check_stage(files)
            if output.part is not None:
                take_part_back(files, output)
            elif files.exists(output.stage_path):
                files.rename(output.stage_path, aside)
            files.rename(self.path, output.stage_path)
            remove_stage(files, aside)

    def drop(self) -> None:
        """Remove what the job has written; output that has landed stays. Repeating it changes nothing."""
        files = files_for(self.output.root)
        if not files.exists(self.output.window_folder):
            return
        with as_sink_error(f"the stage {self.path} cannot be removed"):
            for folder in (self.path, self.shared_path):
                remove_stage(files, folder)
            with files.locked(self.output.stages_folder):
                files.remove_if_empty(self.output.window_folder)


@contextmanager
def drafts_of(outputs: Sequence[StagedOutput]) -> Iterator[list[Draft]]:
    """Make drafts for the block to write and to seal, all of them; if it fails, none of them is left."""
    drafts = [Draft(output) for output in outputs]
    try:
        for draft in drafts:
            draft.make()
        yield drafts
        for draft in drafts:
            draft.land()
    except BaseException:
        for draft in drafts:
            try:
                draft.drop()
            except SinkError as error:
                # The earlier error says more; what is left is removed with the window's next publish.
                _log.warning("%s", error)
        raise
