"""Writes ``jars.sha256`` again: ``make jars``. Use it to move the package to another Kafka version.

Its result is trusted from then on, so a person must read the difference.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kafka_ordered_ops.embedded import jars


def main() -> None:
    """Resolve the roots, hash their dependencies, and replace the list."""
    digests = resolve()
    lines = [f"{digest}  {path}\n" for path, digest in sorted(digests.items())]
    jars.LIST.write_text("".join(lines), encoding="ascii")
    sys.stdout.write(f"{len(lines)} jars in {jars.LIST.name}\n")


def resolve() -> dict[str, str]:
    """Ask Maven for the class path of `jars.ROOTS`: the hash of each jar by its path."""
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext
    from jgo.parse import Coordinate

    with tempfile.TemporaryDirectory() as folder:
        # An empty cache, and the original source: neither an old download nor a mirror counts.
        repository = Path(folder)
        context = MavenContext(
            repo_cache=repository,
            local_repos=[],
            remote_repos={"central": MAVEN_CENTRAL_URL},
            timeout=jars.DOWNLOAD_TIMEOUT_S,
        )
        roots = [replace(Coordinate.parse(root), scope="compile") for root in jars.ROOTS]
        inputs, transitive = context.resolver.resolve(
            [context.create_dependency(root) for root in roots]
        )
        needed = [
            dependency for dependency in transitive if dependency.scope in ("compile", "runtime")
        ]
        files = [dependency.artifact.resolve() for dependency in [*inputs, *needed]]
        return {file.relative_to(repository).as_posix(): jars.sha256(file) for file in files}


if __name__ == "__main__":
    main()
