"""Credentials and settings of an object store, as options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from kafka_ordered_ops.cli.options.help import JOB
from kafka_ordered_ops.cli.options.pairs import pairs_of
from kafka_ordered_ops.cli.options.profile import profile_option
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError

#: The prefix of a value that is read from an environment variable.
_FROM_ENVIRONMENT: Final = "env:"

#: Keys of values to mask. The id of an access key is not secret: a store's own errors include it.
_SECRET: Final = re.compile(
    r"secret|password|token|sas|credential|proxy_url|key(?!_id$)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The object store of an output."""

    storage_option: Annotated[
        list[str],
        profile_option(
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
        """The options by name; `None` uses those of the environment. Raises `ConfigError`, which shows no value."""
        pairs = pairs_of("--storage-option", self.storage_option)
        return {
            key: _resolved(number, value) for number, (key, value) in enumerate(pairs, start=1)
        } or None

    def hide_options(self, screen: Screen) -> None:
        """Mask the secret values in all messages from now on."""
        options = self.storage_options or {}
        screen.hide(value for key, value in options.items() if value and _SECRET.search(key))


def _resolved(number: int, value: str) -> str:
    """Return the value, or that of the environment variable that it names."""
    if not value.startswith(_FROM_ENVIRONMENT):
        return value
    if (env_value := os.environ.get(value.removeprefix(_FROM_ENVIRONMENT))) is None:
        raise ConfigError(
            f"--storage-option number {number} takes its value from an environment variable that is not set: set it, "
            "or correct its name after env:"
        )
    return env_value
