"""Defaults of options: from ``KAFKA_ORDERED_OPS_*`` variables, and from a named profile in one TOML file.

An option overrides its variable, and the variable overrides the profile. Both have the option's name: ``--group`` is
``KAFKA_ORDERED_OPS_GROUP``, and ``group = "hourly"`` in the profile.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import typer

from kafka_ordered_ops.core.errors import ConfigError

_PREFIX: Final = "KAFKA_ORDERED_OPS_"

#: The default profile, used if it exists.
_DEFAULT: Final = "default"

#: Enough for some thousand profiles.
_FILE_BYTES_MAX: Final = 1024 * 1024

#: A table of a profile: the pairs of ``--storage-option``, by the name that they have in Python.
_STORAGE: Final = "storage_options"

#: The keys of a profile: options that stay the same from command to command.
KEYS: Final = (
    "bootstrap-server",
    "config",
    "allow-setting",
    "ledger-topic",
    "group",
    "output",
    _STORAGE,
)


def variable(option: str) -> str:
    """Return the environment variable of an option."""
    return _PREFIX + option.lstrip("-").replace("-", "_").upper()


def profile_option(*names: str, **options: Any) -> Any:
    """Return a `typer.Option` that may be set once: by its variable, or by its key in a profile."""
    option_name = next(name for name in names if name.startswith("--"))
    return typer.Option(*names, envvar=variable(option_name), show_envvar=False, **options)


def use_profile(context: typer.Context, name: str | None) -> str | None:
    """Use a profile's values as defaults of a command's options: the callback of ``--profile``.

    Raises:
        ConfigError: the file is invalid, or has no such profile.
    """
    if context.resilient_parsing:
        # Completion must be fast and silent.
        return name
    path = _path()
    values = _profile(path, name)
    names = {variable(key): key for key in KEYS} | {variable("--storage-option"): _STORAGE}
    defaults = {
        parameter.name: values[key]
        for parameter in context.command.params
        if (key := names.get(str(getattr(parameter, "envvar", None)))) in values
    }
    if isinstance(file := defaults.get("config"), str):
        # Relative to the profiles' file, wherever the command runs.
        defaults["config"] = str(path.parent / Path(file).expanduser())
    if isinstance(pairs := defaults.get("storage_option"), dict):
        defaults["storage_option"] = [f"{name}={value}" for name, value in pairs.items()]
    context.default_map = {**(context.default_map or {}), **defaults}
    return name


def _path() -> Path:
    if explicit := os.environ.get(variable("profiles")):
        return Path(explicit)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "kafka-ordered-ops" / "profiles.toml"


def _profile(path: Path, name: str | None) -> dict[str, Any]:
    profiles = _profiles(path, is_needed=name is not None)
    profile = profiles.get(name or _DEFAULT)
    if profile is None:
        if name is None:
            return {}
        choices = ", ".join(sorted(profiles)) or "none"
        raise ConfigError(
            f"there is no profile {name!r} in {path}; it has {choices}. Add a table [{name}]"
        )
    where = f"profile {name or _DEFAULT!r} in {path}"
    if not isinstance(profile, dict):
        raise ConfigError(f"{where} is not a table: write [{name or _DEFAULT}]")
    for key, value in profile.items():
        if key not in KEYS:
            import difflib

            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it may have {', '.join(KEYS)}"
            raise ConfigError(f"{where} has {key!r}: {hint}")
        # Without the value: it may be a secret in the wrong place.
        if key == _STORAGE:
            _check_pairs(where, value)
        elif key == "allow-setting":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ConfigError(f"{where}: {key} is a list of setting names")
        elif not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is text")
    return profile


def _check_pairs(where: str, value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ConfigError(
            f'{where}: {_STORAGE} is a table of texts, such as {_STORAGE}.aws_region = "eu-west-1"'
        )


def _profiles(path: Path, *, is_needed: bool) -> dict[str, Any]:
    import tomllib

    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(
                f"{path} has more than {_FILE_BYTES_MAX:,} bytes: it is not a file of profiles"
            )
        return tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        if not is_needed and variable("profiles") not in os.environ:
            return {}
        raise ConfigError(
            f"there is no file {path} with profiles: create it, or name another one in {variable('profiles')}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read profiles from {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # Python's limit for long numbers among them.
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
