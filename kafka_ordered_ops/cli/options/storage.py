"""Credentials and settings of an object store, as options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from kafka_ordered_ops.cli.options.help import JOB
from kafka_ordered_ops.cli.options.profile import kept_option
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError

#: Before the name of a variable that has the value.
_FROM_ENVIRONMENT: Final = "env:"

#: Keys of values to mask. The id of an access key is no secret: a store's own errors name it.
_SECRET: Final = re.compile(
    r"secret|password|token|sas|credential|proxy_url|key(?!_id$)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The object store of an output."""

    storage_option: Annotated[
        list[str],
        kept_option(
            "--storage-option",
            metavar="KEY=VALUE",
            rich_help_panel=JOB,
            # A profile's values would be shown as the default.
            show_default=False,
            help="With an output in an object store: a credential or setting (repeatable). Write a secret as KEY=env:VARIABLE.",
        ),
    ] = field(default_factory=list, repr=False)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options by name; None: as the environment has them. Raises `ConfigError`, which shows no value."""
        pairs = (_pair(number, text) for number, text in enumerate(self.storage_option, start=1))
        return dict(pairs) or None

    def hide_options(self, screen: Screen) -> None:
        """Mask the secret values in all messages from now on."""
        options = self.storage_options or {}
        screen.hide(value for key, value in options.items() if value and _SECRET.search(key))


def _pair(number: int, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key:
        # Without the text: it may be a secret whose key was forgotten.
        raise ConfigError(f"--storage-option number {number} is not KEY=VALUE")
    if not value.startswith(_FROM_ENVIRONMENT):
        return key, value
    name = value.removeprefix(_FROM_ENVIRONMENT)
    if (found := os.environ.get(name)) is None:
        raise ConfigError(
            f"--storage-option number {number} takes its value from an environment variable that is not set: set it, "
            "or correct its name after env:"
        )
    return key, found
