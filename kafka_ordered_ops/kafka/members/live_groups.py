"""Check the ledger before live members join a group."""

from __future__ import annotations

from kafka_ordered_ops.core.errors import AuthorizationError
from kafka_ordered_ops.core.group.checks import check_free_for_live
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings


def check_not_in_ledger(
    settings: ClientSettings,
    lookup: Lookup,
    group_id: str,
    timeout_s: float,
    *,
    keeps_maps: bool,
) -> None:
    """Raise `WindowGroupError` if the default ledger has windows of the group; see `check_free_for_live`.

    A principal without rights on the ledger cannot plan windows. Windows of others are detected later, by their commits.
    """
    with Ledger(settings, lookup, timeout_s=timeout_s) as ledger:
        try:
            state = ledger.read(group_id).state
        except AuthorizationError:
            return
    check_free_for_live(state, keeps_maps=keeps_maps)
