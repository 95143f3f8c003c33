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
    MetadataKind.OTHER: "text of another program, which is no offset map",
}


#: The kinds that have done offsets.
MAPS: Final = (MetadataKind.OURS, MetadataKind.PARALLEL_CONSUMER)


def map_json(found: CommittedProgress) -> dict[str, Any]:
    """Return the metadata as JSON; ranges are half-open pairs."""
    done, missing = found.done, _not_done(found)
    return {
        "metadata": found.kind.value,
        "encoding": found.encoding,
        "base": found.base,
        "end": None if done is None else _end(found.base, done),
        "done": None if done is None else done.bounds.tolist(),
        "not_done": None if missing is None else missing.bounds.tolist(),
        "problem": found.problem,
    }


def map_text(found: CommittedProgress, ranges_max: int) -> Text:
    """Return the metadata as lines for people, with so many ranges of each kind."""
    rows = [("metadata", _NAMES[found.kind])]
    if found.encoding is not None:
        rows.append(("encoding", found.encoding))
    rows.append(("base", f"{found.base:,}"))
    done, missing = found.done, _not_done(found)
    if found.problem is not None:
        rows.append(("problem", found.problem))
    elif done is None or missing is None:
        rows.append(("done", "only the ledger has the offsets: the map is too large for metadata"))
    else:
        end = _end(found.base, done)
        rows += [
            ("end", f"{end:,} ({end - found.base:,} offsets from the base on)"),
            ("done", _ranges(done, ranges_max)),
            ("not done", _ranges(missing, ranges_max)),
        ]
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(Text.assemble((name.ljust(width), "bold"), text) for name, text in rows)


def _end(base: int, done: OffsetSet) -> int:
    return done.end if done else base


def _not_done(found: CommittedProgress) -> OffsetSet | None:
    """Return the offsets from the base to the last done one that are not done."""
    done = found.done
    if not done:
        return done
    # What is between the done ranges; a map may have a million.
    between = done.boundaries[:-1]
    if done.first == found.base:
        return OffsetSet(between[1:])
    return OffsetSet(np.concatenate(([found.base], between)))


def _ranges(offsets: OffsetSet, ranges_max: int) -> str:
    if not offsets:
        return "none"
    shown = " ".join(f"[{start:,}, {end:,})" for start, end in offsets.bounds[:ranges_max].tolist())
    more = len(offsets) - ranges_max
    text = f"{offsets.count:,} in {shown}"
    return f"{text} and {more:,} more ranges" if more > 0 else text
