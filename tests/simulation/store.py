"""A store of objects with conditional writes, in memory, whose requests take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from kafka_ordered_ops.output.objects.store import Copy, Found, Listed, State
from tests.simulation.scheduler import Scheduler

#: How many names a question for some of them returns.
_SOME: Final = 20


@dataclass(frozen=True)
class _Object:
    content: bytes
    state: State
    modified: datetime


class SimulatedStore:
    """The methods of `output.objects.store.Store`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._objects: dict[str, _Object] = {}
        self._writes = 0
        #: Is called with the path of each object that has been written.
        self.watch: Callable[[str], None] = lambda path: None
        #: How often the answer to a conditional write is lost, so that the client asks again.
        self.lost_answers = 0.0

    # --- for the oracle ---------------------------------------------------------------------------

    def content(self, path: str) -> bytes | None:
        """Return an object, without a request."""
        found = self._objects.get(path)
        return None if found is None else found.content

    def paths(self, folder: str) -> list[str]:
        """Return the paths of the objects below a folder, without a request."""
        return sorted(path for path in self._objects if path.startswith(f"{folder}/"))

    # --- requests ---------------------------------------------------------------------------------

    def get(self, path: str) -> Found | None:
        """See `Store`."""
        self._ask("get", path)
        found = self._objects.get(path)
        return None if found is None else Found(found.content, found.state)

    def tail(self, path: str, length: int) -> bytes:
        """See `Store`."""
        self._ask("get the end of", path)
        return self._existing(path).content[-length:]

    def put(self, path: str, content: bytes | memoryview) -> None:
        """See `Store`."""
        self._ask("put", path)
        self._write(path, bytes(content))

    def put_if(self, path: str, content: bytes, seen: State | None) -> State | None:
        """See `Store`."""
        self._ask("put if unchanged", path)
        found = self._objects.get(path)
        if (None if found is None else found.state) != seen:
            return None
        state = self._write(path, content)
        if self.lost_answers and self._scheduler.random.random() < self.lost_answers:
            # The client asks again, and finds that somebody has changed the object.
            return None
        return state

    def copy(self, copies: Sequence[Copy]) -> None:
        """See `Store`."""
        for copy in copies:
            self._ask("copy to", copy.target)
            self._write(copy.target, self._existing(copy.source).content)

    def listed(self, folder: str) -> dict[str, Listed]:
        """See `Store`."""
        self._ask("list", folder)
        return {
            path.removeprefix(f"{folder}/"): Listed(
                len(self._objects[path].content), self._objects[path].modified
            )
            for path in self.paths(folder)
        }

    def some(self, folder: str) -> list[str]:
        """See `Store`."""
        return list(islice(self.listed(folder), _SOME))

    def folders(self, folder: str) -> list[str]:
        """See `Store`."""
        return sorted({name.partition("/")[0] for name in self.listed(folder) if "/" in name})

    def delete(self, paths: Sequence[str]) -> None:
        """See `Store`."""
        for path in paths:
            self._ask("delete", path)
            self._objects.pop(path, None)

    # --- inside -----------------------------------------------------------------------------------

    def _ask(self, what: str, path: str) -> None:
        self._scheduler.command(f"{what} {path.removeprefix('s3://lake/')}")

    def _existing(self, path: str) -> _Object:
        if (found := self._objects.get(path)) is None:
            raise FileNotFoundError(f"{path} does not exist")
        return found

    def _write(self, path: str, content: bytes) -> State:
        self._writes += 1
        state = State(str(self._writes), None)
        modified = datetime.fromtimestamp(self._scheduler.now_s, UTC)
        self._objects[path] = _Object(content, state, modified)
        self.watch(path)
        return state
