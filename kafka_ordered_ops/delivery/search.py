"""The search for the newest cutoff that all partitions have reached, with as few checks as possible."""

from __future__ import annotations


class NewestReached:
    """Chooses the next step to check. If a step is reached, all steps before it are reached.

    ::

        search = NewestReached(first, end)
        while (step := search.step) is not None:
            search.saw(is_reached(step))

    Args:
        first: the first step.
        end: the step after the last one.
        from_first: check the first step first: if usually no step is reached, one check suffices. Otherwise check the
            last one first: if usually all steps are reached, one check suffices.
    """

    def __init__(self, first: int, end: int, *, from_first: bool = False) -> None:
        #: All steps before this one are reached.
        self.reached_end = first
        self._missed = end
        self._begins_at = first if from_first else end - 1
        self._has_missed = False
        self._guess: int | None = None

    @property
    def step(self) -> int | None:
        """The step to check; `None` when the search is complete."""
        low, high = self.reached_end, self._missed
        if low >= high:
            return None
        if not self._has_missed:
            return max(self._begins_at, low)
        if self._guess is not None and low - 1 <= self._guess < high:
            return max(self._guess, low)
        return (low + high) // 2

    def saw(self, is_reached: bool, guess: int | None = None) -> None:
        """Record the result of checking `step`.

        Args:
            is_reached: whether the step is.
            guess: the last step that may be reached, after a negative check: a good guess saves checks, a bad one
                changes nothing.
        """
        step = self.step
        if step is None:
            return
        if is_reached:
            self.reached_end, self._begins_at = step + 1, self._missed - 1
        else:
            self._missed, self._has_missed, self._guess = step, True, guess
