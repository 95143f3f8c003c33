"""How many groups a server reads for and how many windows are open, and of them for one reader, so that none shuts the others out."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from kafka_ordered_ops.core.errors import AccessDeniedError, RelayLimitError
from kafka_ordered_ops.relay.engine.server import Server
from kafka_ordered_ops.relay.ports import Reader

#: Who has begun which groups is looked up again after so long.
_LOOK_EVERY_S: Final = 1.0


class GroupLimits:
    """Knows for whom the groups of a server are read.

    Args:
        server: whose groups.
        idle_s: how long a group is read after its last read.
    """

    def __init__(self, server: Server, idle_s: float) -> None:
        self._server, self._idle_s = server, idle_s
        #: By group that is read now: the name of its first reader.
        self._readers: dict[str, str] = {}
        self._look_at = 0.0
        #: Groups by the name of the reader that began them, as the log was at the last look.
        self._begun: dict[str, set[str]] = {}

    def add(self, group: str, reader: Reader | None) -> None:
        """Take note that a group is read from now on."""
        if reader is not None:
            self._readers[group] = reader.name

    def remove(self, group: str) -> None:
        """Take note that a group is read no more."""
        self._readers.pop(group, None)

    def reader_of(self, group: str) -> str | None:
        """Return the name of the first reader of a group that is read now; None: it has no limits."""
        return self._readers.get(group)

    def check(self, group: str, reader: Reader | None, reading: Collection[str]) -> None:
        """Raise `RelayLimitError` if a group cannot be read as well now, and `AccessDeniedError` if it never can.

        Args:
            group: is not read now.
            reader: who asks for it; None: without limits.
            reading: the groups that are read now.
        """
        most = self._server.options.groups_max
        if len(reading) >= most:
            raise RelayLimitError(
                f"this server reads for {most:,} groups already. Call another one, wait until a group has been idle for "
                f"{self._idle_s:g} s, or raise its limit 'groups'"
            )
        if reader is None:
            return
        mine = sum(one == reader.name for one in self._readers.values())
        if mine >= reader.groups_max:
            raise RelayLimitError(
                f"this server reads for {mine:,} groups of the token {reader.name!r} already, and its limit 'groups' is "
                f"{reader.groups_max:,}. Wait until a group has been idle for {self._idle_s:g} s, or raise the limit"
            )
        # A group that began stays in the log: a reader with new names each time would fill it.
        begun = self._begun_by(reader.name)
        if self._is_new(group) and len(begun - {group}) >= reader.groups_max:
            # No later read succeeds either.
            raise AccessDeniedError(
                f"the token {reader.name!r} has begun {len(begun):,} groups, and its limit 'groups' is {reader.groups_max:,}: it "
                f"cannot begin {group}. Read one of its groups, or raise the limit"
            )

    def _is_new(self, group: str) -> bool:
        """Return whether no log has a beginning of a group."""
        states = (one.state.groups.get(group) for one in self._server.partitions.values())
        return not any(one is not None and one.is_opened for one in states)

    def _begun_by(self, name: str) -> set[str]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._begun = {}
            for partition in self._server.partitions.values():
                for group, progress in partition.state.groups.items():
                    if progress.begun_by is not None and not progress.is_window:
                        self._begun.setdefault(progress.begun_by, set()).add(group)
        # The beginnings of groups that are read now may be on their way.
        reading = {group for group, one in self._readers.items() if one == name}
        return self._begun.get(name, set()) | reading


class WindowLimits:
    """Knows which windows of which caller are not done."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._look_at = 0.0
        #: By the name of the caller that opened them: windows that are not done, as the log was at the last look.
        self._open: dict[str, set[str]] = {}
        #: Those that were opened here, and are not in the log yet.
        self._new: dict[str, set[str]] = {}

    def add(self, group: str, reader: Reader) -> None:
        """Take note that a window is opened; raise `RelayLimitError` for one too many."""
        mine = self._open_of(reader.name) - {group}
        if len(mine) >= reader.windows_max:
            raise RelayLimitError(
                f"the token {reader.name!r} has opened {len(mine):,} windows that are not done, and its limit 'windows' is "
                f"{reader.windows_max:,}. Finish one of them, or raise the limit"
            )
        self._new.setdefault(reader.name, set()).add(group)

    def _open_of(self, name: str) -> set[str]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._look()
        return self._open.get(name, set()) | self._new.get(name, set())

    def _look(self) -> None:
        self._open = {}
        states = [one.state.groups for one in self._server.partitions.values()]
        for groups in states:
            for group, progress in groups.items():
                if progress.begun_by is not None and progress.is_window:
                    self._open.setdefault(progress.begun_by, set()).add(group)
        self._new = {
            name: left
            for name, groups in self._new.items()
            if (left := {one for one in groups if not any(one in known for known in states)})
        }
