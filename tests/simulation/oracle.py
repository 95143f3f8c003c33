"""What must hold after every command, by the guarantees: it sees logs, commits and published files, and no state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.group.ledger_rules import topic_id_bytes
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.output.filesystem import TAG_PREFIX
from kafka_ordered_ops.output.layout import WINDOW_PREFIX
from kafka_ordered_ops.output.objects.layout import manifests_folder
from tests.simulation.folder import Shown
from tests.simulation.world import TOPIC, World

#: A record: (number of the topic of that name, partition, offset)
Place = tuple[int, int, int]


class Broken(AssertionError):
    """A guarantee does not hold."""


def _claims_of(plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
    return {part.tp: part.taken | part.lost for part in plan}


@dataclass
class _Group:
    """What is known of a group."""

    root: str
    committed: dict[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    #: By the number of the topic and the partition.
    done: dict[tuple[int, TopicPartition], OffsetSet] = field(default_factory=dict)
    #: The offsets that a claim holds.
    claims: dict[str, Mapping[TopicPartition, OffsetSet]] = field(default_factory=dict)
    #: The records that the job of an attempt has read, by claim and attempt.
    written: dict[tuple[str, int], frozenset[Place]] = field(default_factory=dict)
    #: What readers see, by window.
    shown: dict[str, frozenset[Place]] = field(default_factory=dict)
    #: The newest attempt that they have seen, by claim.
    newest: dict[str, int] = field(default_factory=dict)
    #: What they found in a folder at the last change, by the names of its folders.
    found: Mapping[str, Shown] = field(default_factory=dict)
    #: The attempts that may commit, or could until a newer one took the window up, by claim.
    attempts: dict[str, set[int]] = field(default_factory=dict)
    #: Claims that were given up.
    abandoned: set[str] = field(default_factory=set)
    #: The number of the topic that a claim is about, and its window.
    about: dict[str, tuple[int, str]] = field(default_factory=dict)


class Oracle:
    """The guarantees, for all groups of a history."""

    def __init__(self, world: World, roots: Mapping[str, str]) -> None:
        self._world = world
        self._groups = {group: _Group(root) for group, root in roots.items()}
        self._manifests = {f"{manifests_folder(root)}/": group for group, root in roots.items()}
        self._changes = 0
        world.store.watch = self._written
        world.scheduler.check = self.check

    # --- what processes tell ----------------------------------------------------------------------

    def planned(self, plan: WindowPlan) -> None:
        """A process has got a plan: a claim always holds the same offsets."""
        group = self._groups[plan.group_id]
        group.about[plan.claim_id] = self._life(plan), plan.window_id
        claims = group.claims
        if plan.claim_id not in claims:
            # Abandoned before its process had the answer, and claimed once more: nobody has the plan of before.
            group.abandoned.discard(plan.claim_id)
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

    def adopted(self, group_id: str, adoption: Adoption) -> None:
        """A process has adopted another topic: open windows of the one before are abandoned."""
        group = self._groups[group_id]
        for claim_id, (life, window_id) in group.about.items():
            if life < self._world.life and window_id in adoption.abandoned:
                group.abandoned.add(claim_id)

    def wrote(self, plan: WindowPlan, rows: frozenset[Place], *, is_replay: bool) -> None:
        """A job has read a plan, and is going to write these records: for a delivered window, only to replay it."""
        if plan.status.is_done and not is_replay:
            raise Broken(f"window {plan.window_id} is {plan.status}, and its job runs again")
        life = self._life(plan)
        if others := {place for place in rows if place[0] != life}:
            raise Broken(
                f"window {plan.window_id} is planned for topic {life}, and {sorted(others)} are read"
            )
        expected = self._visible(life, plan.taken)
        if expected != self._kept(rows) or any(
            offset not in plan.taken[TopicPartition(TOPIC, number)] for _, number, offset in rows
        ):
            raise Broken(
                f"window {plan.window_id}: read {sorted(rows)}, planned {sorted(expected)}"
            )
        self._groups[plan.group_id].written[plan.claim_id, plan.attempt] = rows

    # --- after each command -----------------------------------------------------------------------

    def check(self) -> None:
        """Compare the committed offsets, and the folders that readers see, with those before."""
        for name, group in self._groups.items():
            committed = self._world.cluster.group(name).committed
            for tp, commit in committed.items():
                if group.committed.get(tp) is not commit:
                    group.committed[tp] = commit
                    self._moved(name, group, tp, commit)
        if self._world.folder.changes != self._changes:
            self._changes = self._world.folder.changes
            for name, group in self._groups.items():
                self._look(name, group)

    def _moved(self, name: str, group: _Group, tp: TopicPartition, commit: CommittedOffset) -> None:
        offset_map = decode_offset_map(commit.metadata)
        if offset_map is None or offset_map.beyond is None or offset_map.base != commit.offset:
            raise Broken(f"group {name}: the commit of {tp} has another map: {commit}")
        # A commit of a process that has not noticed yet that its topic is gone is about that one.
        life = next(
            life
            for life, topic in enumerate(self._world.lives)
            if topic_id_bytes(topic.topic_id) == offset_map.topic_id
        )
        done, before = (
            OffsetSet.of((0, commit.offset)) | offset_map.beyond,
            group.done.get((life, tp)),
        )
        if before is not None and (gone := before - done):
            raise Broken(f"group {name}: progress of {tp} goes down by {gone}, to {done}")
        gained = done - (before or EMPTY_SET)
        rest = self._visible(life, {tp: gained})
        for rows in group.written.values():
            rest -= rows
        if rest:
            raise Broken(f"group {name}: {sorted(rest)} are done, and no job has read them")
        group.done[life, tp] = done

    def _written(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if (group := self._manifests.get(f"{folder}/")) is not None:
            manifest = json.loads(self._world.store.content(path) or b"{}")
            self._named(group, name.removesuffix(".json"), manifest)

    def _named(self, name: str, window_id: str, manifest: Mapping[str, Any]) -> None:
        """Check the files that a manifest names."""
        group = self._groups[name]
        if manifest["output"] is None:
            if window_id in group.shown:
                raise Broken(f"group {name}: window {window_id} is shown no more")
            return
        contents = []
        for file in manifest["files"]:
            content = self._world.store.content(f"{group.root}/{file['path']}")
            if content is None or len(content) != file["bytes"]:
                raise Broken(f"{file} is named by a manifest, and is not there")
            contents.append(json.loads(content))
        self._shown(name, window_id, contents)

    def _look(self, name: str, group: _Group) -> None:
        """Check the files that readers find in a folder."""
        before, group.found = group.found, self._world.folder.shown(group.root)
        for folder, shown in group.found.items():
            if shown != before.get(folder):
                if others := [name for name in shown.others if not name.startswith(TAG_PREFIX)]:
                    raise Broken(f"group {name}: readers of {folder} find {others}")
                self._shown(name, folder.removeprefix(WINDOW_PREFIX), shown.contents)
        if self._world.folder.exchanges and (gone := before.keys() - group.found.keys()):
            raise Broken(f"group {name}: {gone} are shown no more")

    def _shown(self, name: str, window_id: str, contents: Sequence[Mapping[str, Any]]) -> None:
        """Check what readers see of a window: whole, once, of one attempt, and after the commit."""
        group = self._groups[name]
        jobs = {tuple(content["job"]) for content in contents}
        every = [tuple(place) for content in contents for place in content["rows"]]
        rows: frozenset[Place] = frozenset(every)
        where = f"group {name}, window {window_id} of {jobs}"
        if len(jobs) != 1 or len(every) != len(rows):
            raise Broken(f"{where}: shows {every}: of several jobs, or twice")
        [(claim_id, attempt, _)] = jobs
        expected = group.written.get((claim_id, attempt))
        if rows != expected:
            raise Broken(f"{where}: shows {sorted(rows)}, its job wrote {expected}")
        if attempt < group.newest.get(claim_id, attempt):
            raise Broken(f"{where}: is shown after attempt {group.newest[claim_id]}")
        before = group.shown.get(window_id)
        if before is not None and before != rows and self._kept(before ^ rows):
            raise Broken(f"{where}: shows {sorted(rows)} instead of {sorted(before)}")
        for other, others in group.shown.items():
            if other != window_id and (twice := others & rows):
                raise Broken(f"{where}: shows {sorted(twice)}, as window {other} does")
        undone = {place for place in rows if not self._is_done(group, place)}
        if undone:
            raise Broken(f"{where}: shows {sorted(undone)} before they are committed")
        group.shown[window_id], group.newest[claim_id] = rows, attempt

    # --- at the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Every record is delivered, visible and once; progress is at the ends of the logs."""
        self.check()
        life, logs = self._world.life, self._world.lives[-1].logs
        ends = {TopicPartition(TOPIC, n): log.high_watermark for n, log in enumerate(logs)}
        every = {tp: OffsetSet.of((0, end)) for tp, end in ends.items()}
        for name, group in self._groups.items():
            shown = {place for rows in group.shown.values() for place in rows}
            expected = set(self._visible(life, every))
            for (older, tp), done in group.done.items():
                expected |= self._visible(older, {tp: done})
            if missing := expected - shown:
                raise Broken(f"group {name}: nobody sees {sorted(missing)}")
            for tp, end in ends.items():
                commit = self._world.cluster.group(name).committed.get(tp)
                if commit is None or commit.offset != end:
                    raise Broken(f"group {name}: {tp} is committed at {commit}, of {end}")
            self._finish_folder(name, group)

    def _finish_folder(self, name: str, group: _Group) -> None:
        """Every window is where readers find it, and nothing is left beside them but a marker of each."""
        if not group.root.startswith(self._world.folder.path):
            return
        folders = {f"{WINDOW_PREFIX}{window_id}" for window_id in group.shown}
        if missing := folders - group.found.keys():
            raise Broken(f"group {name}: {missing} are hidden")
        tags = {tag for shown in group.found.values() for tag in shown.others}
        markers = {f"windows/{tag.removeprefix(TAG_PREFIX)}.json" for tag in tags}
        if left := self._world.folder.hidden(group.root) ^ markers:
            raise Broken(f"group {name}: {sorted(left)} are left beside {sorted(group.found)}")

    # --- inside -----------------------------------------------------------------------------------

    def _life(self, plan: WindowPlan) -> int:
        """Return the number of the topic that a plan is about."""
        topic_id = plan.topic_ids[TOPIC]
        ids = [topic.topic_id for topic in self._world.lives]
        return ids.index(topic_id)

    def _visible(self, life: int, offsets: Mapping[TopicPartition, OffsetSet]) -> frozenset[Place]:
        """Return the committed records at some offsets that the logs of a topic still have."""
        found: list[Place] = []
        for tp, wanted in offsets.items():
            log = self._world.lives[life].logs[tp.partition]
            found += [
                (life, tp.partition, entry.offset)
                for entry in log.entries(log.log_start)
                if entry.offset in wanted and entry.is_visible(Isolation.READ_COMMITTED)
            ]
        return frozenset(found)

    def _kept(self, rows: frozenset[Place]) -> frozenset[Place]:
        """Return those of some records that the logs still have."""
        lives = self._world.lives
        return frozenset(
            place for place in rows if place[2] >= lives[place[0]].logs[place[1]].log_start
        )

    def _is_done(self, group: _Group, place: Place) -> bool:
        """Return whether a record is done, as far as committed offsets tell: those of a topic go with it."""
        life, partition, offset = place
        if life < self._world.life or not self._world.is_there:
            return True
        return offset in group.done.get((life, TopicPartition(TOPIC, partition)), EMPTY_SET)


#: The greatest cutoff of windows: after all records.
LAST_CUTOFF_S: Final = 500
