"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

_TIMEOUT_S = 120.0


def seen_by_type_checkers(package: ModuleType) -> set[tuple[str | None, str | None]]:
    """The names that a package imports for type checkers alone, with where from."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    [checked] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        (alias.asname, node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def loaded_by(code: str, *heavy: str) -> set[str]:
    """Which of some modules are loaded once the code has run in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*({set(heavy)!r} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split())
