"""Limit groups and open windows, in all and for each reader, so that no reader takes the whole server."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from kafka_ordered_ops.core.errors import AccessDeniedError, RelayLimitError
from kafka_ordered_ops.relay.engine.server import Server
from kafka_ordered_ops.relay.ports import Reader

#: How long the groups that each reader has begun are cached.
_LOOK_EVERY_S: Final = 1.0


class GroupLimits:
    """Track for which reader each group of a server is read.

    Args:
        server: the server.
        idle_s: how long records are read for a group after its last read.
    """

    def __init__(self, server: Server, idle_s: float) -> None:
        self._server, self._idle_s = server, idle_s
        #: The name of the first reader of each active group.
        self._readers: dict[str, str] = {}
        self._look_at = 0.0
        #: Groups by the name of the reader that began them, from the logs at the last look.
        self._begun: dict[str, set[str]] = {}

    def add(self, group: str, reader: Reader | None) -> None:
        """Add a group that is read from now on."""
        if reader is not None:
            self._readers[group] = reader.name

    def remove(self, group: str) -> None:
        """Remove a group that is not read any more."""
        self._readers.pop(group, None)

    def reader_of(self, group: str) -> str | None:
        """Return the name of the first reader of an active group; None for a reader without limits."""
        return self._readers.get(group)

    def check(self, group: str, reader: Reader | None, reading: Collection[str]) -> None:
        """Raise `RelayLimitError` if another group cannot be read now, and `AccessDeniedError` if it never can be.

        Args:
            group: a group that is not active.
            reader: the reader that requests it; None for one without limits.
            reading: the active groups.
        """
        most = self._server.options.groups_max
        if len(reading) >= most:
            raise RelayLimitError(
                f"this server reads for {most:,} groups already. Call another one, wait until a group has been idle for "
                f"{self._idle_s:g} s, or raise its limit 'groups'"
            )
        if reader is None:
            return
        count = sum(name == reader.name for name in self._readers.values())
        if count >= reader.groups_max:
            raise RelayLimitError(
                f"this server reads for {count:,} groups of the token {reader.name!r} already, and its limit 'groups' is "
                f"{reader.groups_max:,}. Wait until a group has been idle for {self._idle_s:g} s, or raise the limit"
            )
        # A group stays in the log once it has begun: a reader with a new name for each read would fill the log.
        begun = self._begun_by(reader.name)
        if self._is_new(group) and len(begun - {group}) >= reader.groups_max:
            # A later read would fail too.
            raise AccessDeniedError(
                f"the token {reader.name!r} has begun {len(begun):,} groups, and its limit 'groups' is {reader.groups_max:,}: it "
                f"cannot begin {group}. Read one of its groups, or raise the limit"
            )

    def _is_new(self, group: str) -> bool:
        """Return whether a group has begun in no log."""
        states = (
            partition.state.groups.get(group) for partition in self._server.partitions.values()
        )
        return not any(progress is not None and progress.is_opened for progress in states)

    def _begun_by(self, name: str) -> set[str]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._begun = {}
            for partition in self._server.partitions.values():
                for group, progress in partition.state.groups.items():
                    if progress.begun_by is not None and not progress.is_window:
                        self._begun.setdefault(progress.begun_by, set()).add(group)
        # The beginnings of active groups may not be in the log yet.
        reading = {group for group, reader in self._readers.items() if reader == name}
        return self._begun.get(name, set()) | reading


class WindowLimits:
    """Track the unfinished windows of each caller."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._look_at = 0.0
        #: Unfinished windows by the name of the caller that opened them, from the logs at the last look.
        self._open: dict[str, set[str]] = {}
        #: Windows that were opened here, and are not in the log yet.
        self._new: dict[str, set[str]] = {}

    def add(self, group: str, reader: Reader) -> None:
        """Add a window that is being opened; raise `RelayLimitError` for one too many."""
        windows = self._open_of(reader.name) - {group}
        if len(windows) >= reader.windows_max:
            raise RelayLimitError(
                f"the token {reader.name!r} has opened {len(windows):,} windows that are not done, and its limit 'windows' is "
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
        states = [partition.state.groups for partition in self._server.partitions.values()]
        for groups in states:
            for group, progress in groups.items():
                if progress.begun_by is not None and progress.is_window:
                    self._open.setdefault(progress.begun_by, set()).add(group)
        self._new = {
            name: left
            for name, groups in self._new.items()
            if (
                left := {
                    window for window in groups if not any(window in known for known in states)
                }
            )
        }
