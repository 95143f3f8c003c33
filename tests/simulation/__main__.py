"""Repeat histories by their seeds: ``python -m tests.simulation SEED``, or many of them: ``FIRST-LAST``."""

from __future__ import annotations

import logging
import sys
import time

from tests.simulation.clients import patched
from tests.simulation.histories import History, live


def main(words: list[str]) -> int:
    """Live through the histories of some seeds; return 1 if one of them fails."""
    logging.disable(logging.CRITICAL)
    began_s, failed, lived, commands = time.process_time(), 0, 0, 0
    folders, recreated = 0, 0
    with patched():
        for word in words:
            first, _, last = word.partition("-")
            seeds = range(int(first), int(last or first) + 1)
            for seed in seeds:
                outcome = live(History.of(seed))
                lived, commands = lived + 1, commands + outcome.commands
                folders += outcome.history.folder
                recreated += outcome.history.faults.recreation
                if len(seeds) == len(words) == 1:
                    print(outcome)
                elif outcome.problem is not None:
                    print(f"{seed}: {outcome.problem}"[:300], flush=True)
                failed += outcome.problem is not None
    took_s = time.process_time() - began_s
    print(
        f"{lived} histories, {folders} in folders, {recreated} with recreated topics, {failed} fail"
    )
    print(f"{commands} commands, {lived / took_s:.1f} histories in a second of this process")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
