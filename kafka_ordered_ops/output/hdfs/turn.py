"""Let one publisher at a time publish a window, in a file system without locks: a late one can change nothing.

A *turn* is a folder with a unique name::

    <stages>/.turns/<safe id>/<token>/

A publisher makes the folder if there is none, or waits for its holder to end. If the holder shows no sign of life, the
publisher takes over by renaming the folder: of several processes, HDFS lets exactly one do that. It does not matter
whether the former holder is dead or only slow, because each step goes through the folder of the turn: what is renamed
is first renamed into it, and then out of it. Once the folder has another name, both renames fail. So a process that has
lost its turn has no effect any more, and the next holder puts back what the process was moving.
"""

from __future__ import annotations

import itertools
import time
import uuid
from contextlib import suppress
from typing import Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.partition import is_partition
from kafka_ordered_ops.output.hdfs.door import Door

#: The holder of a turn shows a sign of life this often, and loses the turn after this long without one.
ALIVE_S: Final = 2.0
LOST_AFTER_S: Final = 10.0
#: Publishing takes a few renames and deletes; a longer wait means that another process hangs.
WAIT_S: Final = 60.0
_POLL_S: Final = 0.05

#: The folder of all turns, among the stages.
TURNS: Final = ".turns"
_NEW: Final = ".new-"
#: The prefix of names in a turn that are not put back.
_SCRAP: Final = "~scrap-"
#: The published output. Its names in a turn join folders with this text, which no window's folder has in its name.
_OUTPUT: Final = "output"
#: The folders beside the output: the windows' markers, and what moves during a replacement.
_CONTROL: Final = "control"
_CONTROLLED: Final = ("windows", "swap")
_BELOW: Final = "~in~"


class Turn:
    """A process's turn at one window.

    Args:
        door: the connection to the HDFS of the output.
        stages: the folder of all stages.
        window_folder: the window's stages.
        root: the root of the outputs.
    """

    def __init__(self, door: Door, stages: str, window_folder: str, root: str) -> None:
        self._door = door
        self._turns = f"{stages}/{TURNS}"
        self._place = f"{self._turns}/{window_folder.rpartition('/')[2]}"
        self._token = uuid.uuid4().hex
        self._numbers = itertools.count()
        #: The home of what passes through the turn, by the name of its folder in the turn.
        self._homes = {
            _OUTPUT: root,
            "stage": window_folder,
            _CONTROL: stages.rpartition("/")[0],
        }
        self._shown_at = time.monotonic()

    @property
    def _mine(self) -> str:
        return f"{self._place}/{self._token}"

    # --- beginning and end -------------------------------------------------------------------------

    def take(self) -> None:
        """Wait for the turn, and put back what its former holder was moving.

        Raises:
            SinkError: other processes held the turn for too long.
        """
        deadline = time.monotonic() + WAIT_S
        seen, since = None, time.monotonic()
        while True:
            now = time.monotonic()
            holder = self._holder()
            if holder is None:
                if self._make():
                    break
            elif holder != seen:
                seen, since = holder, now
            elif now - since >= LOST_AFTER_S and self._take_over(holder[0]):
                break
            if now >= deadline:
                raise SinkError(
                    f"other processes have had {self._place} for {WAIT_S:g} s: they are publishing the same window. Run "
                    "it again when they are done"
                )
            time.sleep(_POLL_S)
        self._shown_at = time.monotonic()
        self._put_back()

    def end(self) -> None:
        """Release the turn and remove its folder.

        Raises:
            InterruptedError: another process has the turn already.
        """
        self._check_mine()
        self._put_back()
        for name in self._homes:
            self._door.delete(f"{self._mine}/{name}", recursive=False)
        for path in (self._mine, self._place):
            self._remove_if_empty(path)
        # Left by processes that were killed while they began; a live one begins again.
        with suppress(FileNotFoundError):
            for entry in self._door.listed(self._turns):
                if entry.name.startswith(_NEW):
                    self._door.delete(f"{self._turns}/{entry.name}", recursive=True)
        self._remove_if_empty(self._turns)

    def _holder(self) -> tuple[str, int] | None:
        """Return the holder of the turn, and its last sign of life by its own clock."""
        try:
            holders = self._door.listed(self._place)
        except FileNotFoundError:
            return None
        return (holders[0].name, holders[0].modified_ms) if holders else None

    def _make(self) -> bool:
        """Take the turn if nobody holds it; return whether this process has it now."""
        new = f"{self._turns}/{_NEW}{self._token}"
        try:
            for name in self._homes:
                self._door.make_folder(f"{new}/{self._token}/{name}", parents=True)
            # Over an empty folder, which another process leaves for an instant when it ends; never over a turn.
            self._door.rename(new, self._place, overwrite=True)
        except (FileExistsError, FileNotFoundError):
            # Another process was faster, or has cleaned up.
            self._door.delete(new, recursive=True)
            return False
        return True

    def _take_over(self, holder: str) -> bool:
        try:
            self._door.rename(f"{self._place}/{holder}", self._mine, overwrite=False)
            for name in self._homes:
                self._door.make_folder(f"{self._mine}/{name}", parents=False)
        except FileNotFoundError:
            return False
        return True

    def _put_back(self) -> None:
        """Put everything in the turn back where it was, unless something else is there now."""
        for name, home in self._homes.items():
            for entry in self._door.listed(f"{self._mine}/{name}"):
                path = f"{self._mine}/{name}/{entry.name}"
                if not entry.name.startswith(_SCRAP):
                    target = f"{home}/{entry.name.replace(_BELOW, '/')}"
                    try:
                        self._door.make_folder(target.rpartition("/")[0], parents=True)
                        self._door.rename(path, target, overwrite=False)
                        continue
                    except FileExistsError:
                        pass
                self._door.delete(path, recursive=True)

    def _check_mine(self) -> None:
        """Raise `InterruptedError` if another process has taken the turn over."""
        try:
            self._door.entry(self._mine)
        except FileNotFoundError:
            raise InterruptedError(
                f"another process has taken over {self._place}, since this one showed no sign of life for {LOST_AFTER_S:g} s, "
                "or is publishing the same window"
            ) from None

    def _remove_if_empty(self, path: str) -> None:
        with suppress(FileExistsError):
            self._door.delete(path, recursive=False)

    # --- steps -------------------------------------------------------------------------------------

    def rename(self, source: str, target: str) -> bool:
        """Rename something of the window, if this process still has the turn; return False if it is not the window's.

        Raises:
            FileNotFoundError: the source does not exist.
            InterruptedError: another process has the turn.
            FileExistsError: something is at the target.
        """
        through = self._through(source)
        if through is None:
            return False
        self._show_life()
        try:
            self._door.rename(source, through, overwrite=False)
            # After a failure from here on, it is put back at the end.
            self._door.rename(through, target, overwrite=False)
        except FileNotFoundError:
            self._check_mine()
            raise
        return True

    def remove(self, path: str) -> bool:
        """Remove something of the window in one step; return False if it is not the window's."""
        if self._through(path) is None:
            return False
        self._show_life()
        scrap = self.temporary()
        try:
            self._door.rename(path, scrap, overwrite=False)
        except FileNotFoundError:
            self._check_mine()
            return True
        self._door.delete(scrap, recursive=True)
        return True

    def temporary(self) -> str:
        """Return a path in the turn for a file or a folder that is not put back."""
        return f"{self._mine}/stage/{_SCRAP}{next(self._numbers)}"

    def _through(self, path: str) -> str | None:
        home, _, name = path.rpartition("/")
        for key, folder in self._homes.items():
            if folder == home:
                return f"{self._mine}/{key}/{name}"
        for controlled in _CONTROLLED:
            if home == f"{self._homes[_CONTROL]}/{controlled}":
                return f"{self._mine}/{_CONTROL}/{controlled}{_BELOW}{name}"
        root = self._homes[_OUTPUT]
        if is_partition(home.removeprefix(f"{root}/")):
            return f"{self._mine}/{_OUTPUT}/{path.removeprefix(f'{root}/').replace('/', _BELOW)}"
        return None

    def _show_life(self) -> None:
        now = time.monotonic()
        if now - self._shown_at >= ALIVE_S:
            # Any time that differs from the last one works: nobody compares it with a clock.
            try:
                self._door.touch(self._mine, time.time_ns() // 1_000_000)
            except FileNotFoundError:
                self._check_mine()
                raise
            self._shown_at = now
