"""Publish by manifests: for object stores, which cannot rename but support conditional writes.

The store itself copies a stage to where readers look. Then the window's manifest is replaced by one that names the
copies: that write is the publication. A publisher first takes the next *generation*, by a conditional write of the
manifest that leaves its files unchanged. From then on, all publishers of earlier generations fail at their own last
write, so the copies that they leave belong to nobody and are removed; copies of a later generation are never touched.
Nothing is locked, and each step can be repeated after a crash at any point.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.ownership import check_may_replace
from kafka_ordered_ops.output.contents import Holding, check_rows, rows_in
from kafka_ordered_ops.output.filesystem import (
    UNDER_WAY_NAME,
    as_sink_error,
    in_row_order,
)
from kafka_ordered_ops.output.layout import Facts, Layout, Output
from kafka_ordered_ops.output.objects.files import ObjectFiles
from kafka_ordered_ops.output.objects.layout import (
    DRAFT_SEAL,
    SEAL,
    SEAL_BYTES_MAX,
    Manifest,
    Seal,
    check_newest_shown,
    claim_of,
    final_name,
    generation_of,
    is_own_file,
    like,
    manifest_path,
    next_generation,
    seal_path,
    visible,
)
from kafka_ordered_ops.output.objects.reading import check_windows
from kafka_ordered_ops.output.objects.root_owner import check_root, own_root, record_group
from kafka_ordered_ops.output.objects.store import Copy, State, open_store
from kafka_ordered_ops.output.parts import sum_of_facts
from kafka_ordered_ops.output.roots.leftovers import origin_in
from kafka_ordered_ops.output.roots.ownership import (
    STAGE_NAME,
    check_not_fewer,
    may_be_of,
    under_way,
)
from kafka_ordered_ops.output.roots.partitions import kind_of

_log = logging.getLogger(__name__)

#: How many other publishers of the same window one publisher lets pass.
_TURNS: Final = 12
_PAUSE_S: Final = 0.05

_Decision = TypeVar("_Decision")


class _Seen(NamedTuple):
    """A window's manifest, as it was read."""

    manifest: Manifest | None
    state: State | None


class ManifestPublisher:
    """Stages are beside the root; a manifest names the files that readers are to read.

    Args:
        root: the root of the outputs.
        storage_options: credentials and settings; None uses those of the environment.

    Raises:
        ConfigError: the library is missing, or an option is invalid.
    """

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None) -> None:
        self._store = open_store(root, storage_options)
        self._files = ObjectFiles(self._store)

    # --- a job's draft -----------------------------------------------------------------------------

    def check_root(self, output: Layout) -> None:
        """Check that the root belongs to this ledger and has windows with this window's partitioning."""
        with as_sink_error(f"stages below {output.root} cannot be created"):
            check_root(self._store, output)
            self._check_partitions(output)

    def make(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Begin drafts, after a check that they can be published."""
        for output, token in drafts:
            path = output.draft_path(token)
            with as_sink_error(f"the stage {path} cannot be created"):
                self._decided(output, partial(self._check_place, output))
                own_root(self._store, output)
                self._store.put(f"{path}/{UNDER_WAY_NAME}", under_way(output))

    def seal(self, output: Output, token: str, facts: Facts) -> Output:
        """Complete a draft: count the rows of its files, then list the files in a seal."""
        path = output.draft_path(token)
        with as_sink_error(f"the stage {path} cannot be completed"):
            if UNDER_WAY_NAME not in self._files.names(path):
                raise output.removed_error(path)
            sizes = self._files.sizes(path)
            holding = Holding.of(sizes, rows_in(self._files, path, sorted(sizes)))
            check_rows(output.window_id, path, holding, facts.get("records"))
            sealed = replace(output, facts=dict(facts), holding=holding)
            folder = path.removeprefix(f"{output.window_folder}/")
            # Those that were counted, whatever becomes of them since.
            files = {f"{folder}/{name}": sizes[name] for name in in_row_order(sizes)}
            self._store.put(f"{path}/{DRAFT_SEAL}", Seal(sealed, files).to_bytes())
        return sealed

    def land(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make sealed drafts the attempts' stages; other jobs' drafts are left to the next publication."""
        for output, token in drafts:
            path = output.draft_path(token)
            with as_sink_error(f"the stage {path} cannot be completed"):
                if output.part is not None:
                    # The whole's seal names the former files of the part.
                    self._store.delete([seal_path(output.whole)])
                try:
                    sealed = Copy(f"{path}/{DRAFT_SEAL}", seal_path(output), SEAL_BYTES_MAX)
                    self._store.copy([sealed])
                except FileNotFoundError:
                    raise output.removed_error(path) from None

    def drop(self, output: Layout, token: str) -> None:
        """Remove a draft; output that has landed stays."""
        path = output.draft_path(token)
        with as_sink_error(f"the stage {path} cannot be removed"):
            seal = self._seal(output)
            folder = path.removeprefix(f"{output.window_folder}/")
            if seal is None or not any(file.startswith(f"{folder}/") for file in seal.files):
                self._files.remove(path)
            self._files.remove(output.shared_path(token))

    # --- an attempt's stage ------------------------------------------------------------------------

    def staged(self, output: Output) -> Output | None:
        """Return the attempt's stage as it was sealed, if all of its files exist."""
        with as_sink_error(f"the stage {output.stage_path} cannot be read"):
            seal = self._seal(output)
            if seal is None or self._lost(output, seal) is not None:
                return None
            return like(output, seal.output)

    def shown(self, output: Output, *, newer: bool = False) -> Output | None:
        """Return the output that readers see; see `Publisher`."""
        with as_sink_error(f"{output.final_path} cannot be read"):
            for _ in range(_TURNS):
                seen = self._seen(output)
                if seen.manifest is None or (published := seen.manifest.output) is None:
                    return None
                output = output.newer(published) if newer else output
                if not output.is_mine(published):
                    return None
                if self._shows(published, seen.manifest, self._sizes(published.final_path)):
                    return like(output, published)
                if self._seen(output).state == seen.state:
                    return None
            return None

    def as_found(self, output: Output) -> Output:
        """Return an output with the facts of its stage, if there is one."""
        with as_sink_error(f"the stage {output.stage_path} cannot be read"):
            seal = self._seal(output)
            return output if seal is None else like(output, seal.output)

    def merged(self, whole: Output, parts: Sequence[Output]) -> Output:
        """Join complete parts to one stage of the whole window, by a seal that names their files; none is moved."""
        if (joined := self.staged(whole) or self.shown(whole)) is not None:
            return joined
        with as_sink_error(f"the parts of window {whole.window_id} cannot be joined"):
            try:
                seals = [self._seal_of_part(part) for part in parts]
            except SinkError:
                # Another process may have joined and published the parts since.
                if (joined := self.staged(whole) or self.shown(whole)) is not None:
                    return joined
                raise
            files = {path: size for seal in seals for path, size in seal.files.items()}
            rows = [
                None if seal.output.holding is None else seal.output.holding.rows for seal in seals
            ]
            known = [count for count in rows if count is not None]
            holding = Holding.of(files, sum(known) if len(known) == len(rows) else None)
            facts = sum_of_facts([seal.output.facts for seal in seals])
            joined = replace(whole, facts=facts, holding=holding)
            self._store.put(seal_path(whole), Seal(joined, files).to_bytes())
        return joined

    def discard(self, output: Layout) -> None:
        """Remove the stage, and a whole window's parts; published output stays."""
        with as_sink_error(f"the stage {output.stage_path} cannot be removed"):
            objects = self._store.listed(output.window_folder)
            own = [name for name in objects if name.startswith(f"{output.stage_name}~")]
            self._remove_staged(output, own)

    # --- what readers see --------------------------------------------------------------------------

    def check_ready(self, outputs: Sequence[Layout]) -> None:
        """Raise what `publish` would raise, without changing anything."""
        for output in outputs:
            with as_sink_error(
                f"window {output.window_id} cannot be published to {output.final_path}"
            ):
                check_root(self._store, output)
                placed = self._place(output)
                decide = partial(self._to_publish, placed, again=False)
                if self._decided(placed, decide)[2] is not None:
                    self._check_partitions(placed)

    def publish(self, outputs: Sequence[Layout]) -> None:
        """Copy stages to where readers look, name the copies in the manifests, and remove what is obsolete then."""
        for output in outputs:
            self._publish_one(output)

    def _publish_one(self, output: Layout) -> None:
        with as_sink_error(f"window {output.window_id} cannot be published to {output.final_path}"):
            output = self._place(output)
            for turn in range(_TURNS):
                decide = partial(self._to_publish, output, again=turn > 0)
                seen, present, seal = self._decided(output, decide)
                if seal is not None and turn == 0:
                    record_group(self._store, output)
                if seal is None or self._publish(output, seal, seen, present):
                    self._clean(output)
                    return
                # Another publisher of this window is at work: let it finish.
                time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S * 2**turn)
        raise SinkError(
            f"window {output.window_id} is not published to {output.final_path}: {_TURNS} times, another process published the "
            "same window meanwhile. Run the same window again once those processes have ended",
            window_id=output.window_id,
        )

    def _decided(
        self, output: Layout, decide: Callable[[_Seen, Mapping[str, int]], _Decision]
    ) -> tuple[_Seen, Mapping[str, int], _Decision]:
        """Return the manifest, the files where readers look, and the decision based on both.

        They are read one after the other, and so is the stage. An error counts only if the manifest is unchanged after it:
        otherwise another publisher has finished in between, and removed what was looked for.
        """
        for turn in range(_TURNS + 1):
            seen, present = self._seen(output), self._sizes(output.final_path)
            try:
                return seen, present, decide(seen, present)
            except SinkError:
                if turn == _TURNS or self._seen(output).state == seen.state:
                    raise
        raise AssertionError

    def _place(self, output: Output) -> Output:
        """Return the output in the partition that its stage records: another job of the attempt may have written the stage."""
        if (seal := self._seal(output)) is not None:
            return replace(output, partition=seal.output.partition)
        manifest = self._seen(output).manifest
        published = None if manifest is None else manifest.output
        if published is None or not output.is_mine(published):
            return output
        return replace(output, partition=published.partition)

    def _to_publish(
        self, output: Layout, seen: _Seen, present: Mapping[str, int], *, again: bool
    ) -> Seal | None:
        """Return the stage to publish; None if this attempt is published already. Raise what `publish` raises.

        Args:
            output: the output to publish.
            seen: the window's manifest.
            present: the files where readers look.
            again: whether another publisher was faster, so that any published output of this attempt counts.
        """
        manifest = seen.manifest
        is_shown = manifest is not None and self._shows(output, manifest, present)
        if is_shown and again:
            return None
        seal = self._seal(output)
        lost = None if seal is None else self._lost(output, seal)
        if is_shown and (seal is None or lost is not None):
            # A publisher removes the stage; a process that joins the parts meanwhile may name them again.
            return None
        if seal is None:
            check_newest_shown(output, manifest)
            raise output.no_stage_error(visible(output, manifest, present))
        if lost is not None:
            description = visible(output, manifest, present)
            raise output.changed_stage_error(f"{output.stage_path}~", lost, description)
        self._check_place(output, seen, present)
        check_newest_shown(output, manifest)
        if manifest is not None and manifest.output is not None:
            check_not_fewer(seal.output, manifest.output)
        return seal

    def _publish(self, output: Layout, seal: Seal, seen: _Seen, present: Mapping[str, int]) -> bool:
        """Publish the stage; return False if another publisher was faster."""
        before = seen.manifest or Manifest(0, None, {})
        generation = next_generation(output, before, present)
        folder = output.final_path.removeprefix(f"{output.root}/")
        names = [final_name(output, generation, n) for n in range(len(seal.files))]
        targets = [f"{output.final_path}/{name}" for name in names]
        files = dict(zip(names, seal.files.values(), strict=True))
        paths = {f"{folder}/{name}": size for name, size in files.items()}
        # With the names of the copies: if this process dies, the next publisher may look into another folder.
        taken = replace(
            before,
            generation=generation,
            publisher=uuid.uuid4().hex,
            left=(*before.left, *paths),
        )
        # 1. Take the generation: earlier publishers now fail at step 4.
        if (state := self._put(output, taken, seen.state)) is None:
            return False
        # 2. Remove their copies, so that readers of the folder do not see rows twice.
        self._remove_older(output, taken, present)
        self._remove_left(output, before)
        # 3. Copy.
        try:
            sources = [f"{output.window_folder}/{path}" for path in seal.files]
            self._store.copy(list(map(Copy, sources, targets, seal.files.values())))
            is_copied = self._is_copied(output, files, taken)
        except FileNotFoundError:
            # Another publisher of this attempt has ended, and removed the stage.
            is_copied = False
        except OSError:
            with suppress(OSError):
                self._store.delete(targets)
            raise
        # 4. Publish. If this fails, its outcome is unknown, so the copies stay.
        # Files of a forgotten window that was planned again under its id for other times.
        elsewhere = (path for path in before.files if not path.startswith(f"{folder}/"))
        may_be_copied = () if before.publisher is None else before.left
        left = tuple(dict.fromkeys((*may_be_copied, *elsewhere)))
        final = Manifest(taken.generation, seal.output, paths, left=left)
        if is_copied and self._put(output, final, state) is not None:
            return True
        # Only the answer was lost, and the next publisher has started since: readers see these copies.
        if (shown := self._seen(output).manifest) and shown.files.keys() & paths.keys():
            return True
        self._store.delete(targets)
        return False

    def _put(self, output: Layout, manifest: Manifest, seen: State | None) -> State | None:
        """Replace the manifest that was seen; return the new state, or None if another process has replaced it."""
        path, content = manifest_path(output), manifest.to_bytes()
        if (state := self._store.put_if(path, content, seen)) is not None:
            return state
        # The answer to this very write may have been lost, so that the client asked again.
        stored = self._store.get(path)
        return stored.state if stored is not None and stored.content == content else None

    def _is_copied(self, output: Layout, files: Mapping[str, int], taken: Manifest) -> bool:
        """Return whether all copies exist; False if another publisher took over and removed them."""
        present = self._sizes(output.final_path)
        wrong = [name for name, size in files.items() if present.get(name) != size]
        if not wrong:
            return True
        if self._seen(output).manifest != taken:
            return False
        raise OSError(
            f"{len(wrong)} of {len(files)} files were not copied whole, as {output.final_path}/{wrong[0]}: "
            f"{present.get(wrong[0])} bytes instead of {files[wrong[0]]}"
        )

    def _clean(self, output: Layout) -> None:
        """Remove what the published output has made obsolete, and nothing that may still be published."""
        if (manifest := self._seen(output).manifest) is not None:
            self._remove_older(output, manifest, self._sizes(output.final_path))
            # Otherwise the next publisher may need them too.
            if manifest.publisher is None:
                self._remove_left(output, manifest)
        self._remove_staged(
            output,
            [
                name
                for name in self._store.listed(output.window_folder)
                if self._is_worthless(output, name)
            ],
        )

    def _remove_older(self, output: Layout, manifest: Manifest, present: Mapping[str, int]) -> None:
        """Remove the files of earlier generations that the manifest does not name."""
        folder = output.final_path.removeprefix(f"{output.root}/")
        older = [
            f"{output.final_path}/{name}"
            for name in present
            if (generation_of(name) or manifest.generation) < manifest.generation
            and f"{folder}/{name}" not in manifest.files
        ]
        self._store.delete(older)

    def _remove_left(self, output: Layout, manifest: Manifest) -> None:
        """Remove the files in other folders of this window that the manifest no longer needs."""
        left = [
            path
            for path in manifest.left
            # Another program may have written the manifest: only this window's files may be removed.
            if path not in manifest.files and is_own_file(output, path)
        ]
        self._store.delete([f"{output.root}/{path}" for path in left])

    def _is_worthless(self, output: Layout, name: str) -> bool:
        """Return whether a staged object is of this package, ledger and group, and of no newer attempt."""
        place, _, _ = name.partition("/")
        stage = STAGE_NAME.fullmatch(place.partition("~")[0])
        if stage is None:
            return False
        if stage[1] == output.claim_id:
            return int(stage[2]) <= output.attempt
        mark = place
        if not place.endswith(SEAL):
            mark = f"{place.replace('~shared-', '~draft-')}/{UNDER_WAY_NAME}"
        stored = self._store.get(f"{output.window_folder}/{mark}")
        contents = () if stored is None else (stored.content,)
        return may_be_of(output, origin_in(contents, limit_bytes=SEAL_BYTES_MAX))

    def _remove_staged(self, output: Layout, names: Iterable[str]) -> None:
        """Remove staged objects: seals first, so that a seal that exists always has all its files."""
        names = list(names)
        for is_seal in (True, False):
            chosen = [name for name in names if name.endswith(SEAL) is is_seal]
            self._store.delete([f"{output.window_folder}/{name}" for name in chosen])

    def _check_place(self, output: Layout, seen: _Seen, present: Mapping[str, int]) -> None:
        """Raise `SinkError` for a window of another owner, or files of another program."""
        if seen.manifest is not None and seen.manifest.output is not None:
            published = seen.manifest.output
            check_may_replace(output.publisher, published.owner, published.final_path)
            return
        # Files without a manifest are copies of killed publishers of this window, or the manifest was lost.
        claims = output.publisher.claims
        if strangers := [name for name in present if claim_of(name) not in claims]:
            raise SinkError(
                f"{output.final_path}/{strangers[0]} is in the way of window {output.window_id}: another program wrote "
                f"it, or its manifest is gone ({len(strangers)} in all). Move them away, then run the window again",
                window_id=output.window_id,
            )

    def _check_partitions(self, output: Layout) -> None:
        """Raise `ConfigError` when the root's windows are not partitioned as this one is."""
        check_windows(self._store, output.root, kind_of(output), but=output.window_id)

    # --- reading back ------------------------------------------------------------------------------

    def _seen(self, output: Layout) -> _Seen:
        path = manifest_path(output)
        stored = self._store.get(path)
        if stored is None:
            return _Seen(None, None)
        manifest = Manifest.parse(stored.content, output, path)
        if manifest is None:
            raise SinkError(
                f"{path} is in the way of window {output.window_id}: it is not a manifest of this package. "
                "Move it away, then run the window again",
                window_id=output.window_id,
            )
        return _Seen(manifest, stored.state)

    def _seal(self, output: Layout) -> Seal | None:
        """Return the seal of the attempt's stage, if there is one."""
        path = seal_path(output)
        stored = self._store.get(path)
        seal = None if stored is None else Seal.parse(stored.content, output, path)
        return seal if seal is not None and output.is_mine(seal.output) else None

    def _seal_of_part(self, part: Layout) -> Seal:
        seal = self._seal(part)
        lost = None if seal is None else self._lost(part, seal)
        if seal is None or lost is not None:
            raise part.incomplete_part_error(lost)
        return seal

    def _sizes(self, folder: str) -> dict[str, int]:
        return {name: entry.size for name, entry in self._store.listed(folder).items()}

    def _lost(self, output: Layout, seal: Seal) -> str | None:
        """Return how the staged files differ from those that were sealed; None if they do not."""
        sizes = self._sizes(output.window_folder)
        lost = [path for path, size in seal.files.items() if sizes.get(path) != size]
        if not lost:
            return None
        return f"{len(lost):,} of {len(seal.files):,} files are gone or have another size, as {lost[0]}"

    def _shows(self, output: Layout, manifest: Manifest, present: Mapping[str, int]) -> bool:
        """Return whether readers see this attempt's output, with all its files."""
        return output.is_mine(manifest.output) and not manifest.missing(output, present)
