"""How many small changes of the code that decides are found by tests without a broker: its mutation score.

    python -m tests.support.mutation [--sample 600] [--seed 1] [pattern ...]

mutmut makes the mutants and runs, for each, the tests that reach its function. All of them take half a day on two cores,
so a sample is drawn; the score has the interval of Wilson (1927) at 95 %. A pattern names mutants as mutmut does, for
example ``kafka_ordered_ops.core.offset_map.*``. What survives is printed as a diff.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "mutation"
#: A copy of the tree: mutmut writes beside what it mutates.
TREE: Final = FOLDER / "tree"
#: A small module: one run over it makes the mutants of all, and learns which tests reach which function.
_FIRST: Final = "kafka_ordered_ops.core.masked.*"
_ENVIRONMENT: Final = {
    "PYTHONPATH": str(FOLDER / "site"),
    "HYPOTHESIS_PROFILE": "ci",
    # A history takes a second, and hundreds of mutants lie on its way.
    "SIMULATED_HISTORIES": "200",
    "FUZZED_INPUTS": "1000",
}
#: The exit codes by which mutmut tells how a mutant ended; any other one is a failed test.
_SURVIVED: Final = 0
_NO_TESTS: Final = 33


def main(arguments: Sequence[str]) -> int:
    """Draw, run, and print."""
    parser = argparse.ArgumentParser(description="Mutation score of the code that decides.")
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="pattern")
    parser.add_argument("--sample", type=int, default=600, help="mutants; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    _copy_tree()
    _mutmut("run", _FIRST)
    names = sorted(
        name
        for name in _results()
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.patterns)
    )
    if 0 < options.sample < len(names):
        names = sorted(random.Random(options.seed).sample(names, options.sample))
    _mutmut("run", *names)
    _report(names)
    return 0


def _copy_tree() -> None:
    """Copy what git knows, and keep the mutants of files that have not changed since."""
    TREE.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "kafka_ordered_ops", "tests", "pyproject.toml"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, TREE / name
        if source.is_file() and (
            not target.exists() or target.stat().st_mtime_ns != source.stat().st_mtime_ns
        ):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _mutmut(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "mutmut", *words],
        cwd=TREE,
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"mutmut {words[0]} ended with {ran.returncode}:\n{ran.stdout[-8_000:]}")
    return ran.stdout


def _results() -> dict[str, int | None]:
    """The exit code of each mutant; None: not run yet."""
    return {
        name: code
        for file in TREE.glob("mutants/**/*.meta")
        for name, code in json.loads(file.read_text())["exit_code_by_key"].items()
    }


def _report(names: Sequence[str]) -> None:
    results = _results()
    found = [name for name in names if results[name] not in (_SURVIVED, _NO_TESTS)]
    for line in _by_module(names, set(found)):
        print(line)
    low, high = _interval(len(found), len(names))
    print(
        f"found {len(found):,} of {len(names):,}: {len(found) / len(names):.1%} ({low:.1%} to {high:.1%})"
    )
    for name in names:
        if results[name] == _NO_TESTS:
            print(f"\nreached by no test: {name}")
        elif results[name] == _SURVIVED:
            print(f"\n{_mutmut('show', name)}")


def _by_module(names: Sequence[str], found: set[str]) -> Iterator[str]:
    """Yield a line for each module with a survivor."""
    module_of = {name: name.rpartition(".")[0] for name in names}
    of, found_of = Counter(module_of.values()), Counter(module_of[name] for name in found)
    for module in sorted(of):
        if found_of[module] < of[module]:
            yield f"{module}: {found_of[module]} of {of[module]}"


def _interval(found: int, of: int) -> tuple[float, float]:
    """The interval of Wilson for a share, at 95 %."""
    z, share = 1.96, found / of
    middle = share + z * z / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    below = 1 + z * z / of
    return (middle - half) / below, (middle + half) / below


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
