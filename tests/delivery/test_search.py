"""The search for the newest cutoff that is reached: exact whatever is guessed, and short."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.delivery.search import NewestReached

Guess = Callable[[], int | None]


def searched(
    first: int, end: int, reached: int, guess: Guess = lambda: None, *, from_first: bool
) -> tuple[int, list[int]]:
    """The step behind the last one that is reached, and the steps that were looked at."""
    looked: list[int] = []
    search = NewestReached(first, end, from_first=from_first)
    while (step := search.step) is not None:
        assert step not in looked
        assert first <= step < end
        looked.append(step)
        search.saw(step <= reached, None if step <= reached else guess())
    return search.reached_end, looked


@given(
    first=st.integers(-50, 50),
    length=st.integers(0, 10**9),
    reached=st.integers(-60, 10**9),
    guesses=st.lists(st.none() | st.integers(-100, 10**9), max_size=8),
    from_first=st.booleans(),
)
def test_the_newest_step_is_found_whatever_is_guessed(
    first: int, length: int, reached: int, guesses: list[int | None], from_first: bool
) -> None:
    """The last one up to which all is reached, in few looks; no step is looked at twice."""
    end, left = first + length + 1, list(guesses)
    found, looked = searched(
        first, end, reached, lambda: left.pop() if left else None, from_first=from_first
    )
    assert found == max(first, min(reached + 1, end))
    assert len(looked) <= 2 * len(guesses) + length.bit_length() + 2
    if from_first and reached < first:
        assert looked == [first]
    if not from_first and reached >= end - 1:
        assert looked == [end - 1]


@given(first=st.integers(0, 100), length=st.integers(1, 10**9), reached=st.integers(0, 10**9))
def test_a_good_guess_saves_the_search(first: int, length: int, reached: int) -> None:
    """Four looks, however long the past is."""
    last = first + reached
    _, looked = searched(first, first + length + 1, last, lambda: last, from_first=True)
    assert len(looked) <= 4


def test_of_no_steps_there_is_nothing_to_look_at() -> None:
    """An asset none of whose partitions has ended."""
    assert searched(0, 0, 5, from_first=False) == (0, [])
