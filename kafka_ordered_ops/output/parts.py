"""The parts of a split window's output: check that they are complete, and join them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.decoding.discarded import is_count
from kafka_ordered_ops.output.contents import count
from kafka_ordered_ops.output.filesystem import is_data, marker_path, remove_stage
from kafka_ordered_ops.output.layout import Facts, Layout, Output
from kafka_ordered_ops.output.ports import Folders


def in_part_order(outputs: Sequence[Output]) -> list[Output]:
    """Return the parts of one window by their index.

    Raises:
        ConfigError: no part; a whole output; parts of different windows, claims, attempts, splits or roots;
            a duplicated part; or a missing part.
    """
    by_index: dict[int, Output] = {}
    for output in outputs:
        part = _part_of(output)
        if _whole(output) != _whole(outputs[0]):
            raise ConfigError(
                f"parts of different outputs cannot be joined: {_named(outputs[0])}, and {_named(output)}. "
                "Pass the outputs that the parts of one attempt have written below one root"
            )
        if part.index in by_index:
            raise ConfigError(f"{_named(output)} is passed twice: pass each part once")
        by_index[part.index] = output
    if not by_index:
        raise ConfigError("there are no parts to join: pass the output of each part")
    count = _part_of(outputs[0]).count
    missing = [index for index in range(count) if index not in by_index]
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        raise ConfigError(
            f"{len(by_index)} of {count} parts of window {outputs[0].window_id} are here; missing are those "
            f"with index {listed}. Join the parts once all of them have been written"
        )
    return [by_index[index] for index in range(count)]


def sum_of_facts(facts: Sequence[Facts]) -> dict[str, int | None]:
    """Combine the parts' facts: the minimum of ``..._min``, the maximum of ``..._max``, sums of all others.

    A fact that some part lacks is left out; of counts of discarded fields, it is 0. A minimum or maximum is None if no part has a value, a sum if any part
    has none.
    """
    total: dict[str, int | None] = {}
    for name in dict.fromkeys(chain(*facts)):
        if is_count(name):
            total[name] = sum(part_facts.get(name) or 0 for part_facts in facts)
            continue
        if any(name not in part_facts for part_facts in facts):
            continue
        values = [part_facts[name] for part_facts in facts]
        known = [value for value in values if value is not None]
        if name.endswith("_min"):
            total[name] = min(known, default=None)
        elif name.endswith("_max"):
            total[name] = max(known, default=None)
        else:
            total[name] = sum(known) if len(known) == len(values) else None
    return total


def join_parts(files: Folders, whole: Output, parts: Sequence[Output]) -> Output:
    """Move the parts' files into one folder and make it the whole's stage; resume where an earlier attempt ended.

    A part keeps its marker meanwhile: its missing files have been moved. The caller holds the root's lock.

    Raises:
        SinkError: a part is not complete, or files have been deleted.
    """
    merging = whole.merging_path
    joined = whole.own_marker(files, merging)
    if joined is None:
        markers = [_marker_of(files, part) for part in parts]
        facts = sum_of_facts([marker.facts for marker in markers])
        changed = [marker for marker in markers if not _is_as_written(files, marker)]
        files.make_folder(merging)
        for part in parts:
            for name in filter(is_data, files.names(part.stage_path)):
                # The names sort by part, and within a part in its own order.
                target = f"{_prefix(part)}{name.removeprefix('part-')}"
                files.move(f"{part.stage_path}/{name}", f"{merging}/{target}")
        _check_files(files, whole, markers, changed)
        files.settle(merging)
        holding = count(files, merging)
        joined = replace(whole, facts=facts, holding=holding)
        files.write(marker_path(merging), joined.marker())
    # An incomplete stage of the whole window may be there.
    remove_stage(files, whole.stage_path)
    files.rename(merging, whole.stage_path)
    return joined


def take_part_back(files: Folders, part: Layout) -> None:
    """Remove what a part has written, moved or not. The caller holds the root's lock."""
    # Its stage first: the moved files may be removed only once the part counts as incomplete.
    remove_stage(files, part.stage_path)
    merging = part.merging_path
    if files.exists(marker := marker_path(merging)):
        files.remove(marker)
    for name in files.names(merging):
        if name.startswith(_prefix(part)):
            files.remove(f"{merging}/{name}")


def _prefix(output: Layout) -> str:
    return f"part-{_part_of(output).index:05d}-"


def sizes_of_part(files: Folders, part: Layout) -> dict[str, int]:
    """Return the files that a part has written, with their sizes, moved by joining or not."""
    prefix = _prefix(part)
    moved = {
        f"part-{name.removeprefix(prefix)}": size
        for name, size in files.sizes(part.merging_path).items()
        if name.startswith(prefix)
    }
    return {**moved, **files.sizes(part.stage_path)}


def _marker_of(files: Folders, part: Output) -> Output:
    marker = part.own_marker(files, part.stage_path)
    if marker is None:
        raise part.incomplete_part_error()
    return marker


def _is_as_written(files: Folders, part: Layout) -> bool:
    """Return whether a part's files, wherever they are, are those that its marker lists."""
    return part.holding is not None and part.holding.is_of(sizes_of_part(files, part))


def _check_files(
    files: Folders,
    whole: Layout,
    parts: Sequence[Layout],
    changed: Sequence[Layout],
) -> None:
    """Raise `SinkError` unless the joined files are those that the parts have written."""
    written = sum(0 if part.holding is None else part.holding.files for part in parts)
    present = len(files.sizes(whole.merging_path))
    if not changed and written == present:
        return
    named = ", ".join(str(part.part) for part in changed[:8])
    raise SinkError(
        f"the parts of window {whole.window_id} have written {written:,} files, and {present:,} are in "
        f"{whole.merging_path}: another program deleted, added or changed some"
        f"{f', of {named}' if named else ''}. Remove that folder, and run the parts again",
        window_id=whole.window_id,
    )


def _part_of(output: Layout) -> PlanPart:
    if output.part is None:
        raise ConfigError(
            f"attempt {output.attempt} of window {output.window_id} is a whole output, not a part: there "
            "is nothing to join. Publish it"
        )
    return output.part


def _whole(output: Layout) -> tuple[object, ...]:
    return (
        output.root,
        output.window_id,
        output.claim_id,
        output.attempt,
        output.partition,
        _part_of(output).count,
    )


def _named(output: Layout) -> str:
    return (
        f"{output.part} of window {output.window_id}, claim {output.claim_id}, attempt {output.attempt}, "
        f"below {output.root}"
    )
