"""Run pytest; run the few tests that failed once more, one at a time.

Beside three others on two cores, a test with a real broker meets a deadline late once in some thousand times. Kafka's own
build repeats such tests as well (``maxTestRetries`` in its build.gradle). What failed first is always printed.

    python -m tests.support.once_more [options of pytest]
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

#: More failures than this have a cause that a second run would hide.
_FAILED_MAX: Final = 3


class _Failures:
    """Collects what failed."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        #: A worker that died, or a file that cannot be collected, leaves tests behind that never ran.
        self.all_ran = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed, also before and after its own code."""
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected."""
        self.all_ran = self.all_ran and not report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        """Note a worker that died."""
        self.all_ran = self.all_ran and error is None


def main(options: list[str]) -> int:
    """Return pytest's exit code: of the second run, if there was one."""
    failures = _Failures()
    code = int(pytest.main(options, plugins=[failures]))
    if code != pytest.ExitCode.TESTS_FAILED or not failures.all_ran:
        return code
    if not 1 <= len(failures.tests) <= _FAILED_MAX:
        return code
    print("\nOnce more, one at a time:", *failures.tests, sep="\n  ", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *failures.tests], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
