"""Processes that die: before any change that they make to a disk, to an object store, or to the ledger.

`Ports.process` counts the changes that the package makes in its block, in whichever thread, and raises `Killed` before
the one that a `Kill` names. After that every further change raises `Killed` too, until the block ends: no cleanup of
the package has an effect, as after `kill -9`. Locks of files go with their descriptors, as they do then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn
from unittest.mock import patch

from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.objects.store import Store
from kafka_ordered_ops.testing.ledger import MemoryLedger
from tests.support.oracle.outputs.steps import Kill

#: What changes a disk, below the package's own methods: a folder is removed file by file.
_OF_THE_SYSTEM: Final = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir")
#: Methods of `LocalFiles` that change it in another way.
_OF_FILES: Final = ("exchange", "sink")
#: What readers of a folder may notice.
_SEEN: Final = frozenset({"rename", "rmdir", "unlink", "exchange"})
_OF_STORES: Final = ("put", "put_if")
_OF_STORES_EACH: Final = ("copy", "delete")


class Killed(BaseException):
    """The process is dead: nothing that it does after this has an effect."""


class Process:
    """What one process of the package has done so far."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill = kill
        self._left = -1 if kill is None else kill.change
        self.is_dead = False
        self._is_dying = False
        #: Changes of the ledger that are stored.
        self.stored = 0

    def before_change(self) -> None:
        """Die here, if it is time."""
        if self.is_dead:
            raise Killed
        if self._kill is not None and self.stored >= self._kill.stored:
            self._left -= 1
        if self._left == 0 or self._is_dying:
            self.die()

    def die(self) -> NoReturn:
        """Have no effect any more."""
        self.is_dead = True
        raise Killed

    def in_gap(self) -> None:
        """Die before the next change, if this is to die in the instant in which readers miss something."""
        self._is_dying = self._kill is not None and self._kill.in_gap


class Ports:
    """All that a process of the package changes goes through here.

    Args:
        moment: called after each change that readers could notice, in the middle of a call; returns whether they miss
            something.
    """

    def __init__(self, moment: Callable[[], bool]) -> None:
        self._moment = moment
        self._process: Process | None = None
        self._lock = threading.RLock()

    @contextmanager
    def process(self, kill: Kill | None) -> Iterator[Process]:
        """Let the block be one process of the package; where `kill` says, it dies: its stack is unwound, without effects."""
        with self.running(Process(kill)) as one:
            yield one

    @contextmanager
    def running(self, process: Process) -> Iterator[Process]:
        """Let the block be this process."""
        self._process = process
        try:
            yield process
        finally:
            self._process = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Put the counters in, until the block ends."""
        with ExitStack() as stack:
            for name in _OF_THE_SYSTEM:
                of_disk = self._of_disk(name, getattr(os, name))
                stack.enter_context(patch.object(os, name, of_disk))
            for name in _OF_FILES:
                counted = self._counted(getattr(LocalFiles, name), is_seen=name in _SEEN)
                stack.enter_context(patch.object(LocalFiles, name, counted))
            for name in _OF_STORES:
                counted = self._counted(getattr(Store, name), is_seen=name == "put_if")
                stack.enter_context(patch.object(Store, name, counted))
            for name in _OF_STORES_EACH:
                counted = self._counted_each(getattr(Store, name))
                stack.enter_context(patch.object(Store, name, counted))
            for ledger in (Ledger, MemoryLedger):
                update = self._counted_update(ledger.update)
                stack.enter_context(patch.object(ledger, "update", update))
            yield

    def _before(self) -> Process | None:
        with self._lock:
            process = self._process
            if process is not None:
                process.before_change()
            return process

    def _after(self) -> None:
        with self._lock:
            process = self._process
            if process is None or process.is_dead:
                return
            # Readers are other processes.
            self._process = None
            try:
                is_gap = self._moment()
            finally:
                self._process = process
            if is_gap:
                process.in_gap()

    def _counted(self, original: Callable[..., Any], *, is_seen: bool) -> Callable[..., Any]:
        def one(*arguments: Any, **options: Any) -> Any:
            is_counted = self._before() is not None
            outcome = original(*arguments, **options)
            if is_counted and is_seen:
                self._after()
            return outcome

        return one

    def _of_disk(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """To make a folder that is there, or to remove what is not, is no change."""
        counted = self._counted(original, is_seen=name in _SEEN)

        def one(path: str, *arguments: Any, **options: Any) -> Any:
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            is_there = True
            try:
                os.stat(path, dir_fd=folder, follow_symlinks=False)
            except OSError:
                is_there = False
            act = counted if is_there != (name == "mkdir") else original
            return act(path, *arguments, **options)

        return one

    def _counted_each(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of several at once, each is a change."""

        def each(store: Store, items: Sequence[Any]) -> None:
            if self._process is None:
                original(store, items)
                return
            for item in items:
                self._before()
                original(store, [item])
                self._after()

        return each

    def _counted_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(*arguments: Any, **options: Any) -> Any:
            process = self._before()
            view = original(*arguments, **options)
            if process is not None:
                process.stored += view is not None
                # The process may die before it hears the answer.
                self._before()
            return view

        return update
