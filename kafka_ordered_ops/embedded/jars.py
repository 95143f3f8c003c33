"""The broker's class path: exactly the files of ``jars.sha256``, or an error.

The list is the lock: one line for each jar, its hash and its path in a Maven repository, from which its
coordinates follow. A start needs no dependency resolution, only files that match. They are hashed before
*every* start, because a download tool that finds a bad checksum may do no more than warn, and because a
cache folder is writable.

To move to another Kafka, change `KAFKA_VERSION` and run ``make jars``.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kafka_ordered_ops.embedded.cache import cache_dir, locked
from kafka_ordered_ops.embedded.errors import JarsError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION = "4.3.0"

#: The roots of the list. The logger is not among Kafka's own dependencies; without it the
#: broker is silent, and a failed start has no explanation. (Kafka speaks the SLF4J 1.7 interface.)
ROOTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)

#: The committed list.
LIST = Path(__file__).with_name("jars.sha256")

#: About 50 small files: round trips take the time, not bytes.
_PARALLEL_DOWNLOADS = 8
DOWNLOAD_TIMEOUT_S = 60


def class_path() -> list[Path]:
    """Return the broker's verified jars, downloaded if this is the first time."""
    return listed_jars(LIST, f"kafka-{KAFKA_VERSION}")


def listed_jars(file: Path, name: str) -> list[Path]:
    """Return the jars of a list, verified, in its order; downloaded if this is the first time.

    Args:
        file: the list.
        name: the use of the jars, as the beginning of their folder's name.

    Raises:
        JarsError: they cannot be downloaded, or are not the listed ones.
    """
    digests = read_list(file)
    # The folder is named after the list, so that versions never mix.
    folder = cache_dir() / f"{name}-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        with locked("jars"):
            # Another process may have been the first to get the lock.
            if not folder.is_dir():
                _download(digests, folder)
    verify(folder, digests)
    return [folder / path for path in digests]


def read_list(file: Path) -> dict[str, str]:
    """Return the hash of each jar by its path, in the order of the class path."""
    pairs = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {path: digest for digest, path in pairs}


def verify(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise `JarsError` unless `folder` holds exactly the listed jars, byte for byte."""
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*.jar")}
    problems = [f"not in the list: {path}" for path in sorted(paths - digests.keys())]
    for path, expected in digests.items():
        if path not in paths:
            problems.append(f"missing: {path}")
        elif (digest := sha256(folder / path)) != expected:
            problems.append(f"altered: {path} (SHA-256 {digest}, wanted {expected})")
    if problems:
        raise JarsError(
            f"The jars in {folder} are not the ones in the committed list: "
            f"{'; '.join(problems)}. Unless they were changed on purpose, delete the folder; "
            "the next start downloads it again.",
            problems=tuple(problems),
        )


def sha256(file: Path) -> str:
    """Return the hash of a file, as the list writes it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(digests: Mapping[str, str], folder: Path) -> None:
    """Fetch every listed jar into `folder`, which appears complete and verified or not at all."""
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _fetch([_coordinates(path) for path in digests], staging)
        verify(staging, digests)
        staging.rename(folder)
    finally:
        # Gone after the rename; the rest of a failed download has no further use.
        shutil.rmtree(staging, ignore_errors=True)


def maven(repository: Path | None = None) -> MavenContext:
    """Return what downloads from Maven Central, or a mirror that the user has configured for jgo.

    Args:
        repository: the folder for downloads; None means jgo's own.

    Raises:
        JarsError: jgo is not installed.
    """
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as error:
        raise JarsError(
            "Jars must be downloaded once, and that needs jgo: "
            "pip install 'kafka-ordered-ops[embedded]'",
            problems=("jgo is not installed",),
        ) from error
    # A mirror that the user has configured for jgo is first: Maven Central may be out of reach. The source makes no
    # difference, because every byte is checked.
    mirrors = {**GlobalSettings.load().repositories, "central": MAVEN_CENTRAL_URL}
    return MavenContext(
        repo_cache=repository,
        local_repos=[],
        remote_repos=mirrors,
        timeout=DOWNLOAD_TIMEOUT_S,
    )


def _fetch(coordinates: list[tuple[str, str, str, str]], repository: Path) -> None:
    context = maven(repository)

    def fetch(coordinate: tuple[str, str, str, str]) -> str | None:
        group_id, artifact, version, classifier = coordinate
        try:
            context.project(group_id, artifact).at_version(version).artifact(classifier).resolve()
        except Exception as error:  # noqa: BLE001 - jgo lets its HTTP library's errors through, and plain RuntimeError
            return f"{group_id}:{artifact}:{version}: {error}"
        return None

    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        problems = tuple(problem for problem in pool.map(fetch, coordinates) if problem)
    if problems:
        raise JarsError(
            f"{len(problems)} of {len(coordinates)} jars could not be "
            f"downloaded, the first: {problems[0]}. Maven Central, or a mirror in jgo's "
            "settings, must be reachable for the first start.",
            problems=problems,
        )


def _coordinates(path: str) -> tuple[str, str, str, str]:
    *group_id, artifact, version, file = PurePosixPath(path).parts
    # `name-1.0.jar` has no classifier, `name-1.0-tests.jar` has one.
    classifier = file.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")
    return ".".join(group_id), artifact, version, classifier
