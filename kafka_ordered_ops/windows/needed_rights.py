"""Report the missing rights of a call of the service, if the cluster refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.queries.group import GroupQueries
from kafka_ordered_ops.windows.queries.rights import all_rights_named

#: Calls that change nothing and need no right on the group.
_LOOKS: Final = frozenset({*vars(GroupQueries), "replay", "sample"})


def rights_named(
    settings: ClientSettings, group_id: str, ledger_topic: str, what: str, about: Sequence[object]
) -> AbstractContextManager[None]:
    """Return the block that adds missing rights to errors. Of calls that change nothing, only `preview` needs the group."""
    changes = what != "preview" and what not in _LOOKS
    return all_rights_named(
        settings,
        group_id if changes or what == "preview" else None,
        ledger_topic=ledger_topic,
        about=about,
        changes=changes,
    )
