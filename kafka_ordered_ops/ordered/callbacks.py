"""Call the callbacks of a member; an error names the callback that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kafka_ordered_ops.core.errors import CallbackError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.options import Member, OnPartitions


class Callbacks:
    """The callbacks of a member; without a member or a function, calls do nothing."""

    def __init__(self, member: Member | None) -> None:
        self._member = member
        #: Whether a callback is running.
        self.is_running = False

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Report partitions that are read from now on."""
        if self._member is not None:
            self._call("on_assigned", self._member.on_assigned, positions)

    def revoked(self, positions: Mapping[TopicPartition, int]) -> None:
        """Report partitions that are revoked, and can still be committed."""
        if self._member is not None:
            self._call("on_revoked", self._member.on_revoked, positions)

    def lost(self, positions: Mapping[TopicPartition, int]) -> None:
        """Report partitions that other members may already have."""
        if self._member is not None:
            self._call("on_lost", self._member.on_lost, positions)

    def _call(
        self, name: str, function: OnPartitions | None, positions: Mapping[TopicPartition, int]
    ) -> None:
        if function is None or not positions:
            return
        with self._running():
            try:
                function(dict(positions))
            except Exception as error:
                raise CallbackError(
                    f"{name} raised {type(error).__name__}: {error}. The read has ended; records that were not committed "
                    "are read again",
                    callback=name,
                    partitions=tuple(map(str, sorted(positions))),
                ) from error

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False
