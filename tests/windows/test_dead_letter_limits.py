"""How many dead letters a window may have, and how the setting is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    DecodeError,
    Window,
)
from kafka_ordered_ops.core.window import dead_letters
from kafka_ordered_ops.decoding import DeadLetter
from kafka_ordered_ops.decoding import left_out as left_out_module
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.dead_letters import BAD, JSON, fill, ids, places, service, window
from tests.support.worlds import World


def test_too_many_stop_the_window(world: World, tmp_path: Path) -> None:
    """Nothing is committed and nothing written, until the limit or the schema is another one."""
    fill(world)
    windows, bad = service(world), world.named("bad")
    limits: list[tuple[Any, str]] = [
        (f"dead_letter:{bad}:2", "max_bad is 2"),
        # Three of seven are 0.4286.
        (DeadLetter(bad, max_bad=0.42), "max_bad is 0.42 of 7 offsets"),
    ]
    for on_bad, said in limits:
        with pytest.raises(
            DecodeError, match=rf"at least 3, and {said}.*\[0\] at offset 1"
        ) as failure:
            windows.run(window(world, on_bad=on_bad), tmp_path / "lake", window_id="w")
        assert (failure.value.offset, failure.value.bad) == (1, 3)
        assert [record.status for record in windows.list()] == ["planned"]
        assert (places(world), ids(tmp_path / "lake")) == ([], [])
    limited = window(world, on_bad=f"dead_letter:{bad}:0.43")
    windows.run(limited, tmp_path / "lake", window_id="w")
    assert places(world) == BAD


@given(
    st.integers(1, 1_000) | st.floats(1e-9, 1, exclude_max=True),
    st.integers(0, 2_000),
    st.integers(),
)
def test_a_limit_is_the_same_as_text(max_bad: float, bad: int, offsets: int) -> None:
    """A number, or a share; a window never has more than a thousand."""
    if round(max_bad, 9) == 1:
        return
    limit = DeadLetter("bad", max_bad)
    assert dead_letters.as_on_bad(str(limit)) == limit
    allowed = max_bad if isinstance(max_bad, int) else limit.max_bad * offsets
    assert (limit.excess(bad, offsets) is None) == (bad <= allowed and bad <= 1_000)


@pytest.mark.parametrize("max_bad", [0, -1, 1_001, 0.0, 1.0, 2.5, 1e-12, float("nan"), True, "1%"])
def test_what_is_no_limit_is_refused(max_bad: Any) -> None:
    """By name; so is such a text."""
    with pytest.raises(ConfigError, match="max_bad"):
        DeadLetter("bad", max_bad)
    with pytest.raises(ConfigError, match="dead_letter:TOPIC"):
        dead_letters.as_on_bad("dead_letter:bad:1.5")


def test_their_bytes_are_limited(
    memory: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction takes only so much, whatever the number of records."""
    fill(memory)
    monkeypatch.setattr(left_out_module, "BYTES_MAX", 100)
    with pytest.raises(DecodeError, match="more than 100 bytes"):
        service(memory).run(window(memory), tmp_path / "lake", window_id="w")
    assert places(memory) == []


def test_the_longest_list_fits_a_result() -> None:
    """As many records as there may be, with the longest reasons and names of topics."""
    from kafka_ordered_ops.core import strict_json
    from kafka_ordered_ops.windows.checks import RESULT_BYTES_MAX

    reasons = left_out_module._cut(dict.fromkeys(("key", "value"), '\x00"' * 400))
    assert sum(len(text.encode()) for text in reasons.values()) == dead_letters.REASON_BYTES_MAX
    longest = ('"' * len(text) for text in reasons.values())
    record = dead_letters.BadRecord("t" * 249, 2**31 - 1, 2**63 - 1, *longest)
    letters = dead_letters.DeadLetters("t", (record,) * dead_letters.MAX_BAD)
    result = dead_letters.with_dead_letters({}, letters)
    assert len(strict_json.dumps(result)) < RESULT_BYTES_MAX * 3 // 4
    assert dead_letters.dead_letters_in(result) == letters


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("dead_letter:orders-bad", DeadLetter("orders-bad")),
        ("dead_letter:orders-bad:50", DeadLetter("orders-bad", 50)),
        ("dead_letter", DeadLetter()),
        ("dead_letter::50", DeadLetter(max_bad=50)),
        ("dead_letter::0.01", DeadLetter(max_bad=0.01)),
    ],
)
def test_the_setting_may_be_text(given: str, value: DeadLetter) -> None:
    """On a command line, in YAML, and stored with the plan."""
    asked = Window("orders", "2026-01-01T00:00:00Z", values=JSON, on_bad=given)
    assert asked.on_bad == value
    assert str(value) == given
    assert Window.from_json(asked.to_json()).on_bad == value


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeadLetter("a b"),
        lambda: DeadLetter("bad", 0),
        lambda: DeadLetter("bad", 1_001),
        lambda: Window("orders", values=JSON, on_bad="dead_letter:"),
        lambda: Window("orders", values=JSON, on_bad="dead_letter::0"),
        lambda: Window("orders", values=JSON, on_bad="dead_letter:::50"),
        lambda: Window("orders", on_bad="dead_letters:bad"),
    ],
)
def test_other_settings_are_refused(make: Callable[[], object]) -> None:
    """No topic, or no limit that the ledger takes."""
    with pytest.raises(ConfigError):
        make()
