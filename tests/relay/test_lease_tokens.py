"""Tokens of leases: only what a server of the relay has made is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import LeaseError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.relay.tokens import Lease, TokenSigner
from tests.support.strategies import large_offset_sets

SIGNER = TokenSigner(b"s" * 32)
LEASE = Lease(TopicPartition("orders", 3), "id", "g", "0" * 32, OffsetSet.of((1, 5)), 7)


@given(large_offset_sets, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_token_is_the_lease(offsets: OffsetSet, until_ms: int, partition: int) -> None:
    """Signed and read back: the same."""
    lease = LEASE._replace(
        tp=TopicPartition("orders", partition), offsets=offsets, until_ms=until_ms
    )
    assert SIGNER.lease_of(SIGNER.token_of(lease)) == lease


@given(st.data())
def test_any_other_text_is_refused_by_name(data: st.DataObject) -> None:
    """A changed one, another relay's, or anything: the one error, whatever it holds."""
    token = SIGNER.token_of(LEASE)
    at = data.draw(st.integers(0, len(token) - 2))
    piece = data.draw(st.text(max_size=5) | st.sampled_from(["\ud800", "\0", "=", "A" * 9_000]))
    for other in (token[:at] + piece + token[at + 1 :], token[:at], piece):
        if other != token:
            with pytest.raises(LeaseError):
                SIGNER.lease_of(other)
    with pytest.raises(LeaseError):
        TokenSigner(b"t" * 32).lease_of(token)
