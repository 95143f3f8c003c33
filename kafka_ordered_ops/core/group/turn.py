"""A change's turn among those of all processes of a group, kept over several drafts of it."""

from __future__ import annotations


class GroupTurn:
    """A turn where nobody else changes the group; a context manager, which ends it."""

    def __enter__(self) -> GroupTurn:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    def take(self, *, overtaken: bool, early: bool) -> bool:
        """Wait for the turn, if others wait or an earlier draft was overtaken; return whether it was waited for.

        With `early`, return already when only one other goes first.
        """
        return False

    def leave(self) -> None:
        """Let the others go on; may be called twice."""
