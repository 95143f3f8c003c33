"""All that was ever seen in the logs of some topics, also what retention or compaction has taken since."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.oracle.plain import Plain, Row


class LogKey(NamedTuple):
    """One partition's log: a topic that was deleted and created again has others."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(slots=True)
class Log:
    """What is known of one log."""

    start: int = 0
    stable_end: int = 0
    end: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    #: Offsets that compaction has taken: nobody promises their records.
    compacted: set[int] = field(default_factory=set)

    def visible(self, *, committed_only: bool) -> dict[int, Row]:
        """The records that readers of an isolation are given, also those that retention has taken."""
        return {
            offset: row
            for offset, row in self.rows.items()
            if (not committed_only or row.committed) and offset not in self.compacted
        }


class Truth:
    """What topics hold and held. `look` reads all of them; call it before and after whatever takes records away."""

    def __init__(self, plain: Plain, topics: Iterable[str] = ()) -> None:
        self.plain = plain
        #: Names that are looked at.
        self.names: set[str] = set(topics)
        self.logs: dict[LogKey, Log] = {}
        #: The id of each topic that exists now.
        self.topic_ids: dict[str, str] = {}

    def look(self) -> Truth:
        """Reads everything that is there now."""
        seen = self.plain.topics(sorted(self.names))
        self.topic_ids = {name: topic.topic_id for name, topic in seen.items()}
        for name, topic in seen.items():
            for number, found in topic.logs.items():
                log = self.logs.setdefault(LogKey(name, topic.topic_id, number), Log())
                log.start = max(log.start, found.start)
                log.stable_end, log.end = found.stable_end, found.end
                log.compacted |= {
                    offset
                    for offset in log.rows
                    if offset >= found.start and offset not in found.rows
                }
                log.rows.update(found.rows)
        return self

    def of(self, topic: str) -> list[LogKey]:
        """The logs of a topic that exists now."""
        return self.matching([topic], [])

    def matching(self, topics: Iterable[str], exclude: Iterable[str]) -> list[LogKey]:
        """The logs that exist now of topics by name, or by pattern with a leading ``^``."""
        chosen = {
            name
            for name in self.topic_ids
            if any(_matches(one, name) for one in topics)
            and not any(_matches(one, name) for one in exclude)
        }
        return sorted(
            key
            for key in self.logs
            if key.topic in chosen and key.topic_id == self.topic_ids[key.topic]
        )

    def bounds(self) -> dict[LogKey, tuple[int, int, int]]:
        """Of the logs that exist now: (start, stable end, end)."""
        return {
            key: (log.start, log.stable_end, log.end)
            for key, log in self.logs.items()
            if self.topic_ids.get(key.topic) == key.topic_id
        }


def _matches(wanted: str, name: str) -> bool:
    return bool(re.fullmatch(wanted, name)) if wanted.startswith("^") else wanted == name
