"""The verbs that need more than one call."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kafka_ordered_ops import KafkaOrderedOpsError, OrderedWindows, StagedOutput
from kafka_ordered_ops.cli import main


def found_in(root: str) -> Callable[[Mapping[str, Any]], StagedOutput | None]:
    """Return what finds an earlier attempt's output below a root."""
    return lambda result: StagedOutput.found(result, root=root)


def unpublished(windows: OrderedWindows) -> set[str]:
    """Return the windows that the package names as committed and not visible yet."""
    state = windows.state()
    return set() if state is None else set(state.unpublished)


def clean(root: str, windows: OrderedWindows | None = None, ledger: str = "") -> None:
    """Remove old stages: by age alone, or with the word of a group's ledger.

    Raises:
        KafkaOrderedOpsError: the command failed.
    """
    if windows is None:
        StagedOutput.clean(root, older_than=timedelta(0))
        return
    words = ["clean", root, "--older-than", "PT0S"]
    words += ["-b", windows.settings.bootstrap_servers, "-g", windows.group_id]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([*words, "--ledger-topic", ledger])
    if "Traceback" in said.getvalue():
        raise RuntimeError(said.getvalue())
    if code != 0:
        raise KafkaOrderedOpsError(f"clean ended with {code}: {said.getvalue()}")
