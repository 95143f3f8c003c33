"""Applications on YARN, by a tag: found, and ended, over the REST interface of the resource manager."""

from __future__ import annotations

import http.client
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from xml.etree import ElementTree

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, JobFailedError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text

#: One request; a resource manager answers in milliseconds.
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
#: Hadoop's settings have some hundred kilobytes, with all defaults.
_SETTINGS_BYTES_MAX: Final = 16 * 1024 * 1024

_FOLDERS: Final = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
_FILES: Final = ("core-site.xml", "yarn-site.xml")
_REFERENCE: Final = re.compile(r"\$\{([^${}]+)\}")
#: How often a value may refer to another one.
_REFERENCES_MAX: Final = 20

_REFUSED: Final = (401, 403)

#: Hadoop's own clients do not use the environment's proxy either.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class YarnApplication:
    """An application, as the resource manager reports it."""

    id: str
    state: str
    final_status: str
    #: Why it ended.
    diagnostics: str = ""
    #: Its page in a browser, while it has one.
    page: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no driver of it is left, and none will be started."""
        return self.state in ("FINISHED", "FAILED", "KILLED")

    @property
    def has_succeeded(self) -> bool:
        """Whether its driver exited with 0."""
        return (self.state, self.final_status) == ("FINISHED", "SUCCEEDED")


class _Application(Stored, frozen=True, forbid_unknown_fields=False, rename="camel"):
    id: Text
    state: Text
    final_status: Text
    application_tags: Text = ""
    diagnostics: str | None = None
    tracking_url: Text | None = None


@dataclass(frozen=True)
class ResourceManager:
    """The resource managers of a cluster, of which one is active.

    Args:
        urls: their addresses.
    """

    urls: tuple[str, ...]

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> ResourceManager:
        """Return the resource managers of Hadoop's settings.

        Args:
            variables: the environment of spark-submit, with ``YARN_CONF_DIR`` or ``HADOOP_CONF_DIR``.

        Raises:
            ConfigError: there are no such settings, or they cannot be read.
        """
        folder = next((path for name in _FOLDERS if (path := variables.get(name))), None)
        if folder is None:
            raise ConfigError(
                f"neither {' nor '.join(_FOLDERS)} is set, so YARN's resource manager is not known: give "
                "submit={'environment': {'HADOOP_CONF_DIR': ...}}, or set it where tasks run"
            )
        return cls(tuple(_urls(_settings(Path(folder)))))

    def check(self) -> None:
        """Raise unless the resource manager answers; see `application`."""
        self._ask("info")

    def application(self, tag: str) -> YarnApplication | None:
        """Return the application with a tag; None if the resource manager has none.

        Raises:
            ConfigError: the resource manager refuses the request.
            JobFailedError: no resource manager answers.
        """
        answer = self._ask(f"apps?applicationTags={tag}")
        try:
            applications = [_Application.parse(one, "application") for one in _listed(answer)]
        except JsonError as error:
            raise JobFailedError(
                f"the answer of YARN's resource manager is invalid: {error}"
            ) from error
        # A resource manager that does not know the filter returns all applications.
        tagged = [one for one in applications if tag in one.application_tags.split(",")]
        if not tagged:
            return None
        newest = max(tagged, key=lambda one: one.id)
        page = newest.tracking_url
        return YarnApplication(
            newest.id,
            newest.state,
            newest.final_status,
            (newest.diagnostics or "").strip(),
            page if page is not None and page.startswith(("http://", "https://")) else None,
        )

    def kill(self, tag: str) -> None:
        """End the application with a tag, if it runs or waits; raises as `application` does."""
        application = self.application(tag)
        if application is not None and not application.has_ended:
            self._ask(f"apps/{application.id}/state", strict_json.dumps({"state": "KILLED"}))

    def _ask(self, path: str, body: str | None = None) -> Any:
        """Return the answer of the active resource manager; a standby one does not answer in JSON."""
        reasons = []
        for url in self.urls:
            request = urllib.request.Request(
                f"{url}/ws/v1/cluster/{path}",
                None if body is None else body.encode(),
                {"Accept": "application/json", "Content-Type": "application/json"},
                method="GET" if body is None else "PUT",
            )
            try:
                with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
                    content = answer.read(_ANSWER_BYTES_MAX + 1)
                return strict_json.loads(content, limit_bytes=_ANSWER_BYTES_MAX)
            except HTTPError as error:
                error.close()
                if error.code in _REFUSED:
                    raise ConfigError(
                        f"YARN's resource manager at {url} refuses the request with HTTP status {error.code}: only a "
                        "resource manager whose REST interface needs no login is supported"
                    ) from None
                reasons.append(f"{url}: HTTP status {error.code}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                reasons.append(f"{url}: {getattr(error, 'reason', error)}")
        raise JobFailedError(
            f"no resource manager of YARN answers ({'; '.join(reasons)}). Its applications go on: run the window again"
        )


def _listed(answer: Any) -> Sequence[Any]:
    """Return the applications of an answer, which has null or nothing in the place of an empty list."""
    applications = answer.get("apps") if isinstance(answer, Mapping) else None
    listed = applications.get("app") if isinstance(applications, Mapping) else None
    return listed if isinstance(listed, list) else ()


def _settings(folder: Path) -> dict[str, str]:
    """Return Hadoop's settings in a folder; raise `ConfigError` if they cannot be read."""
    settings = {}
    for path in (folder / name for name in _FILES):
        try:
            with open(path, "rb") as file:
                tree = ElementTree.fromstring(file.read(_SETTINGS_BYTES_MAX))
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigError(f"Hadoop's settings in {path} cannot be read: {error}") from error
        for entry in tree.iter("property"):
            name, value = entry.findtext("name"), entry.findtext("value")
            if name is not None and value is not None:
                settings[name.strip()] = value.strip()
    return settings


def _urls(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses of the resource managers' pages."""
    secure = settings.get("yarn.http.policy") == "HTTPS_ONLY"
    scheme, kind, port = ("https", "webapp.https", 8090) if secure else ("http", "webapp", 8088)
    prefix = "yarn.resourcemanager"
    ids = (
        settings.get(f"{prefix}.ha.rm-ids", "") if _is_on(settings, f"{prefix}.ha.enabled") else ""
    )
    names = [name.strip() for name in ids.split(",") if name.strip()]
    for suffix in [f".{name}" for name in names] or [""]:
        address = _value(settings, f"{prefix}.{kind}.address{suffix}")
        host = _value(settings, f"{prefix}.hostname{suffix}")
        yield f"{scheme}://{address or f'{host or os.uname().nodename}:{port}'}"


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() == "true"


def _value(settings: Mapping[str, str], name: str) -> str | None:
    """Return a setting, with the settings that it refers to."""
    value = settings.get(name)
    for _ in range(_REFERENCES_MAX):
        if value is None or not _REFERENCE.search(value):
            break
        value = _REFERENCE.sub(lambda match: settings.get(match[1], ""), value)
    return value or None
