"""The protocol by itself, in very many histories, as the package has it and wrong by one thing."""

from __future__ import annotations

import os
from itertools import count

import pytest

from tests.simulation.oracle import Broken
from tests.simulation.protocol import Protocol, ProtocolHistory

#: Histories of `make test`; `make nightly` sets more.
HISTORIES = int(os.environ.get("SIMULATED_HISTORIES", "300"))
PIECES = 4
#: A wrong protocol is found within so many histories.
FOUND_WITHIN = 200


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("piece", range(PIECES))
def test_the_protocol_keeps_every_guarantee(piece: int) -> None:
    """Whichever process dies and whatever comes late: no offset is taken twice or never, and progress never goes down."""
    for seed in range(piece, HISTORIES, PIECES):
        try:
            ProtocolHistory(seed).live()
        except Broken as problem:
            raise AssertionError(f"repeat it with: ProtocolHistory({seed}).live()") from problem


@pytest.mark.parametrize(
    "wrong",
    [
        Protocol(fences_first=False),
        Protocol(reads_after_fence=False),
        Protocol(has_one_id=False),
        Protocol(reads_back=False),
    ],
    ids=[
        "init_transactions comes just before the commit",
        "the ledger is read before the fence",
        "each process has a transactional id of its own",
        "the outcome of a commit is not read back",
    ],
)
def test_a_wrong_protocol_is_found(wrong: Protocol) -> None:
    """A protocol that is wrong by one thing breaks a guarantee in some history."""
    for seed in count():
        assert seed < FOUND_WITHIN, f"not found in {FOUND_WITHIN} histories"
        try:
            ProtocolHistory(seed, wrong).live()
        except Broken:
            return
