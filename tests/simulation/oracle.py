"""What must hold after every command, by the guarantees: it sees logs, commits and published files, and no state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.output.objects.layout import manifests_folder
from tests.simulation.world import TOPIC, World

#: (partition, offset)
Place = tuple[int, int]


class Broken(AssertionError):
    """A guarantee does not hold."""


def _claims_of(plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
    return {part.tp: part.taken | part.lost for part in plan}


@dataclass
class _Group:
    """What is known of a group."""

    root: str
    committed: dict[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    done: dict[TopicPartition, OffsetSet] = field(default_factory=dict)
    #: The offsets that a claim holds.
    claims: dict[str, Mapping[TopicPartition, OffsetSet]] = field(default_factory=dict)
    #: The records that the job of an attempt has read, by claim and attempt.
    written: dict[tuple[str, int], frozenset[Place]] = field(default_factory=dict)
    #: What readers see, by window.
    shown: dict[str, frozenset[Place]] = field(default_factory=dict)
    #: The attempts that may commit, or could until a newer one took the window up, by claim.
    attempts: dict[str, set[int]] = field(default_factory=dict)
    #: Claims that were given up.
    abandoned: set[str] = field(default_factory=set)


class Oracle:
    """The guarantees, for all groups of a history."""

    def __init__(self, world: World, roots: Mapping[str, str]) -> None:
        self._world = world
        self._groups = {group: _Group(root) for group, root in roots.items()}
        self._manifests = {f"{manifests_folder(root)}/": group for group, root in roots.items()}
        world.store.watch = self._written
        world.scheduler.check = self.check

    # --- what processes tell ----------------------------------------------------------------------

    def planned(self, plan: WindowPlan) -> None:
        """A process has got a plan: a claim always holds the same offsets."""
        group = self._groups[plan.group_id]
        claims = group.claims
        held = _claims_of(plan)
        known = claims.setdefault(plan.claim_id, held)
        if any(known.get(tp, EMPTY_SET) != held.get(tp, EMPTY_SET) for tp in {*known, *held}):
            raise Broken(
                f"window {plan.window_id}, claim {plan.claim_id}: {held} after {dict(known)}"
            )
        if plan.status.is_open:
            attempts = group.attempts.setdefault(plan.claim_id, set())
            if plan.attempt in attempts:
                raise Broken(f"window {plan.window_id}: two processes have attempt {plan.attempt}")
            attempts.add(plan.attempt)

    def delivered(self, plan: WindowPlan) -> None:
        """A process has delivered a window that was open: no newer attempt had taken it up, and nobody had given it up.

        A covered window has no records: to commit what another attempt has committed changes nothing.
        """
        group = self._groups[plan.group_id]
        if not plan.status.is_open or plan.content is PlanContent.COVERED:
            return
        newest = max(group.attempts[plan.claim_id])
        if plan.attempt < newest or plan.claim_id in group.abandoned:
            raise Broken(
                f"window {plan.window_id}: attempt {plan.attempt} of claim {plan.claim_id} commits, after attempt "
                f"{newest}, or after it was abandoned"
            )

    def gave_up(self, group_id: str, record: WindowRecord) -> None:
        """A process has abandoned a window."""
        if record.status is WindowStatus.ABANDONED:
            self._groups[group_id].abandoned.add(record.plan.claim_id)

    def wrote(self, plan: WindowPlan, rows: frozenset[Place]) -> None:
        """A job has read a plan, and is going to write these records."""
        expected = self._visible(plan.taken)
        if expected != self._kept(rows) or any(
            offset not in plan.taken[TopicPartition(TOPIC, number)] for number, offset in rows
        ):
            raise Broken(
                f"window {plan.window_id}: read {sorted(rows)}, planned {sorted(expected)}"
            )
        self._groups[plan.group_id].written[plan.claim_id, plan.attempt] = rows

    # --- after each command -----------------------------------------------------------------------

    def check(self) -> None:
        """Compare the committed offsets with those before."""
        for name, group in self._groups.items():
            committed = self._world.cluster.group(name).committed
            for tp, commit in committed.items():
                if group.committed.get(tp) is not commit:
                    group.committed[tp] = commit
                    self._moved(name, group, tp, commit)

    def _moved(self, name: str, group: _Group, tp: TopicPartition, commit: CommittedOffset) -> None:
        offset_map = decode_offset_map(commit.metadata)
        if offset_map is None or offset_map.beyond is None or offset_map.base != commit.offset:
            raise Broken(f"group {name}: the commit of {tp} has another map: {commit}")
        done, before = OffsetSet.of((0, commit.offset)) | offset_map.beyond, group.done.get(tp)
        if before is not None and (gone := before - done):
            raise Broken(f"group {name}: progress of {tp} goes down by {gone}, to {done}")
        gained = done - (before or EMPTY_SET)
        rest = self._visible({tp: gained})
        for rows in group.written.values():
            rest -= rows
        if rest:
            raise Broken(f"group {name}: {sorted(rest)} are done, and no job has read them")
        group.done[tp] = done

    def _written(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if (group := self._manifests.get(f"{folder}/")) is not None:
            self._shown(group, json.loads(self._world.store.content(path) or b"{}"), name)

    def _shown(self, name: str, manifest: Mapping[str, Any], path: str) -> None:
        group = self._groups[name]
        window_id = path.removesuffix(".json")
        output = manifest["output"]
        if output is None:
            if window_id in group.shown:
                raise Broken(f"group {name}: window {window_id} is shown no more")
            return
        rows = self._rows(group.root, manifest)
        where = f"group {name}, window {window_id} of claim {output['claim_id']}"
        expected = group.written.get((output["claim_id"], output["attempt"]))
        if rows != expected:
            raise Broken(f"{where}: shows {sorted(rows)}, its job wrote {expected}")
        before = group.shown.get(window_id)
        if before is not None and before != rows and self._kept(before ^ rows):
            raise Broken(f"{where}: shows {sorted(rows)} instead of {sorted(before)}")
        for other, others in group.shown.items():
            if other != window_id and (twice := others & rows):
                raise Broken(f"{where}: shows {sorted(twice)}, as window {other} does")
        undone = {place for place in rows if not self._is_done(group, place)}
        if undone:
            raise Broken(f"{where}: shows {sorted(undone)} before they are committed")
        group.shown[window_id] = rows

    def _rows(self, root: str, manifest: Mapping[str, Any]) -> frozenset[Place]:
        rows: list[Place] = []
        for file in manifest["files"]:
            content = self._world.store.content(f"{root}/{file['path']}")
            if content is None or len(content) != file["bytes"]:
                raise Broken(f"{file} is named by a manifest, and is not there")
            rows += [(partition, offset) for partition, offset in json.loads(content)]
        if len(rows) != len(set(rows)):
            raise Broken(f"{manifest['files']} have a record twice")
        return frozenset(rows)

    # --- at the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Every record is delivered, visible and once; progress is at the ends of the logs."""
        self.check()
        ends = {tp: self._world.cluster.log(tp).high_watermark for tp in self._world.partitions}
        every = {tp: OffsetSet.of((0, end)) for tp, end in ends.items()}
        for name, group in self._groups.items():
            shown = {place for rows in group.shown.values() for place in rows}
            if missing := self._visible(every) - shown:
                raise Broken(f"group {name}: nobody sees {sorted(missing)}")
            for tp, end in ends.items():
                commit = self._world.cluster.group(name).committed.get(tp)
                if commit is None or commit.offset != end:
                    raise Broken(f"group {name}: {tp} is committed at {commit}, of {end}")

    # --- inside -----------------------------------------------------------------------------------

    def _visible(self, offsets: Mapping[TopicPartition, OffsetSet]) -> frozenset[Place]:
        """Return the committed records at some offsets that the logs still have."""
        found: list[Place] = []
        for tp, wanted in offsets.items():
            log = self._world.cluster.log(tp)
            found += [
                (tp.partition, entry.offset)
                for entry in log.entries(log.log_start)
                if entry.offset in wanted and entry.is_visible(Isolation.READ_COMMITTED)
            ]
        return frozenset(found)

    def _kept(self, rows: frozenset[Place]) -> frozenset[Place]:
        """Return those of some records that the logs still have."""
        starts = {
            tp.partition: self._world.cluster.log(tp).log_start for tp in self._world.partitions
        }
        return frozenset(place for place in rows if place[1] >= starts[place[0]])

    @staticmethod
    def _is_done(group: _Group, place: Place) -> bool:
        return any(tp.partition == place[0] and place[1] in done for tp, done in group.done.items())


#: The greatest cutoff of windows: after all records.
LAST_CUTOFF_S: Final = 500
