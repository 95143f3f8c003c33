"""The README as a package index shows it: relative links, which are dead there, lead to the repository.

Its address is `Repository` of `[project.urls]` in `pyproject.toml`. Without one, the text of a link stays, and pictures
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def readme_of_index(text: str, repository: str | None, version: str) -> str:
    """Return the README with no relative link.

    Args:
        text: the README of the repository.
        repository: the repository's address, if it has one.
        version: whose tag the links lead to.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, shown, path = link.groups()
        if repository is None:
            return "" if picture else shown
        kind = "raw" if picture else "blob"
        return f"{picture}[{shown}]({repository.rstrip('/')}/{kind}/v{version}/{path})"

    return re.sub(r"\n{3,}", "\n\n", _RELATIVE.sub(absolute, text))


def get_metadata_hook() -> type:
    """Return what hatchling calls for the metadata that pyproject.toml calls dynamic."""
    # Here, because the environment of the tests has no hatchling.
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class Readme(MetadataHookInterface):
        """The hook of `[tool.hatch.metadata.hooks.custom]`."""

        def update(self, metadata: dict[str, Any]) -> None:
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            repository = metadata.get("urls", {}).get("Repository")
            shown = readme_of_index(text, repository, metadata["version"])
            metadata["readme"] = {"content-type": "text/markdown", "text": shown}

    return Readme
