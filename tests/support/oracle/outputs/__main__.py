"""Repeat histories by their seeds: ``python -m tests.support.oracle.outputs SEED...``, or ``FIRST-LAST``."""

from __future__ import annotations

import logging
import sys

from tests.support.oracle.outputs.memory import failure_of, live_in_memory
from tests.support.oracle.outputs.steps import history


def main(words: list[str]) -> int:
    """Live through the histories of some seeds; return 1 if one of them fails."""
    logging.disable(logging.CRITICAL)
    failed, lived = False, 0
    for word in words:
        first, _, last = word.partition("-")
        seeds = range(int(first), int(last or first) + 1)
        for seed in seeds:
            told = history(seed)
            found = live_in_memory(told)
            failed = failed or bool(found.problems)
            if len(seeds) == len(words) == 1:
                print(told, *found.transcript, *found.problems, "", sep="\n")
                if found.problems:
                    print("As short as it can be:", failure_of(told), sep="\n")
            elif found.problems:
                print(f"{seed}: {found.problems[0]}"[:300], flush=True)
            lived += 1
    print(f"{lived} histories")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
