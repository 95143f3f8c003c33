"""Decoded metadata of a committed offset, as text and as JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_map.reading import CommittedProgress, MetadataKind
from kafka_ordered_ops.core.offset_set import OffsetSet

_NAMES: Final = {
    MetadataKind.NONE: "empty",
    MetadataKind.OURS: "an offset map of windows",
    MetadataKind.PARALLEL_CONSUMER: "an offset map of Parallel Consumer",
    MetadataKind.KAFKA_STREAMS: "metadata of Kafka Streams, which has no offset map",
    MetadataKind.OTHER: "text of another program, not an offset map",
}


#: The kinds that have done offsets.
MAPS: Final = (MetadataKind.OURS, MetadataKind.PARALLEL_CONSUMER)


def map_json(progress: CommittedProgress) -> dict[str, Any]:
    """Return the metadata as JSON; ranges are half-open pairs."""
    done, missing = progress.done, _not_done(progress)
    return {
        "metadata": progress.kind.value,
        "encoding": progress.encoding,
        "base": progress.base,
        "end": None if done is None else _end(progress.base, done),
        "done": None if done is None else done.bounds.tolist(),
        "not_done": None if missing is None else missing.bounds.tolist(),
        "problem": progress.problem,
    }


def map_text(progress: CommittedProgress, ranges_max: int) -> Text:
    """Return the metadata as lines for people, with at most `ranges_max` ranges of each kind."""
    rows = [("metadata", _NAMES[progress.kind])]
    if progress.encoding is not None:
        rows.append(("encoding", progress.encoding))
    rows.append(("base", f"{progress.base:,}"))
    done, missing = progress.done, _not_done(progress)
    if progress.problem is not None:
        rows.append(("problem", progress.problem))
    elif done is None or missing is None:
        rows.append(("done", "only the ledger has the offsets: the map is too large for metadata"))
    else:
        end = _end(progress.base, done)
        rows += [
            ("end", f"{end:,} ({end - progress.base:,} offsets from the base)"),
            ("done", _ranges(done, ranges_max)),
            ("not done", _ranges(missing, ranges_max)),
        ]
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(Text.assemble((name.ljust(width), "bold"), text) for name, text in rows)


def _end(base: int, done: OffsetSet) -> int:
    return done.end if done else base


def _not_done(progress: CommittedProgress) -> OffsetSet | None:
    """Return the offsets from the base to the last done one that are not done."""
    done = progress.done
    if not done:
        return done
    # The gaps between the done ranges, of which a map may have a million.
    between = done.boundaries[:-1]
    if done.first == progress.base:
        return OffsetSet(between[1:])
    return OffsetSet(np.concatenate(([progress.base], between)))


def _ranges(offsets: OffsetSet, ranges_max: int) -> str:
    if not offsets:
        return "none"
    ranges = " ".join(
        f"[{start:,}, {end:,})" for start, end in offsets.bounds[:ranges_max].tolist()
    )
    more = len(offsets) - ranges_max
    text = f"{offsets.count:,} in {ranges}"
    return f"{text} and {more:,} more ranges" if more > 0 else text
