"""The output of a task: a folder, or a prefix in an object store with the connection that reaches it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kafka_ordered_ops.airflow.storage import storage_options_of
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.hosting.full_paths import check_full_path
from kafka_ordered_ops.output.address import address_of, is_in_store
from kafka_ordered_ops.spec.destination import check_output


class ObjectPath(Protocol):
    """What Airflow's ``ObjectStoragePath`` has: its module loads fsspec, which no DAG's file needs."""

    @property
    def protocol(self) -> str:
        """The scheme."""

    @property
    def conn_id(self) -> str | None:
        """The connection."""


#: What tasks take as ``output``.
Output = str | os.PathLike[str] | ObjectPath | None

#: A connection, as Airflow lets people name them, but for what could be a password or a path.
_CONN_ID: Final = re.compile(r"[A-Za-z0-9_.#!()-]+")

#: Stands for the account of a connection that is not read yet, where only the form of an output is checked.
_UNKNOWN_ACCOUNT: Final = "account"

_AZURE: Final = "dfs.core.windows.net"


@dataclass(frozen=True)
class Place:
    """An output that is known, and the connection for it."""

    #: As an output is written everywhere else, without a connection.
    root: str
    conn_id: str | None
    #: In Azure: whether the connection names the account.
    lacks_account: bool = False

    def opened(self, *, travels: bool) -> tuple[str, dict[str, Any] | None]:
        """Read the connection; return the root and its storage options, None without a connection.

        Raises:
            AirflowNotFoundException: there is no such connection.
            ConfigError: it does not fit the output.
        """
        if self.conn_id is None:
            return self.root, None
        options = storage_options_of(self.conn_id, address_of(self.root).scheme, travels=travels)
        if not self.lacks_account:
            return self.root, options
        if not (account := options.get("account_name")):
            raise ConfigError(
                f"connection {self.conn_id} names no account: write the output as "
                f"abfss://container@account.{_AZURE}/prefix, with storage_conn_id"
            )
        return self.root.replace(f"@{_UNKNOWN_ACCOUNT}.", f"@{account}.", 1), options


def text_of(output: Output) -> Any:
    """Return an ``ObjectStoragePath`` as text, with its connection; anything else unchanged.

    Templates in it are kept, and a task's rendered fields show the name of the connection only.
    """
    if output is None or isinstance(output, str) or not hasattr(output, "storage_options"):
        return os.fspath(output) if isinstance(output, os.PathLike) else output
    # Airflow 3.1 has the connection in the text or among the options, later versions have it by its name.
    conn_id = getattr(output, "conn_id", None) or output.storage_options.get("conn_id")
    if conn_id is None:
        return str(output)
    scheme, _, rest = str(output).partition("://")
    return f"{scheme}://{conn_id}@{rest.removeprefix(f'{conn_id}@')}"


def place_of(output: Any, storage_conn_id: str | None) -> Place | None:
    """Return the place of an output; None if there is none.

    Raises:
        ConfigError: an invalid output or a relative path, two connections for it, or one for a local folder.
    """
    text, conn_id = text_of(output), storage_conn_id or None
    check_full_path(text, what="output")
    if text is None:
        if conn_id is not None:
            raise ConfigError(
                "storage_conn_id is for an output in an object store: give output=, or leave it out"
            )
        return None
    if not isinstance(text, str) or not is_in_store(text):
        if conn_id is not None:
            raise ConfigError(
                f"storage_conn_id is for an output in an object store, but the output is {check_output(text)}: leave it out"
            )
        return Place(check_output(text), None)
    root, named, lacks_account = _split(text)
    if named is not None and conn_id is not None and named != conn_id:
        raise ConfigError("output and storage_conn_id name two connections: give one of them")
    found = named if conn_id is None else conn_id
    if lacks_account and found is None:
        # As `abfss://container/prefix`: the error says what is missing.
        check_output(text)
    return Place(check_output(root), found, lacks_account)


#: An output's root and storage options.
Opened = tuple[str | None, Mapping[str, Any] | None]


def opened_place(output: Any, storage_conn_id: str | None, *, travels: bool) -> Opened:
    """Read the connection of an output on the worker; return its root and storage options.

    Raises:
        AirflowNotFoundException, ConfigError: as `place_of` and `Place.opened`.
    """
    place = place_of(output, storage_conn_id)
    return (None, None) if place is None else place.opened(travels=travels)


def check_place(
    output: Any, storage_conn_id: str | None, is_known: Callable[[Any], bool] = is_literal
) -> Any:
    """Return the root of an output as far as it is known; raise `ConfigError` for an invalid one."""
    text = text_of(output)
    if not is_known(text):
        return text
    place = place_of(text, storage_conn_id if is_known(storage_conn_id) else None)
    return None if place is None else place.root


def check_known_output(output: Any) -> None:
    """Raise `ConfigError` for the relative path of an output, if it is known."""
    if is_literal(text := text_of(output)):
        check_full_path(text, what="output")


def _split(text: str) -> tuple[str, str | None, bool]:
    """Return an output without a connection, the connection in it, and whether an account is missing."""
    scheme, _, rest = text.partition("://")
    bucket, slash, key = rest.partition("/")
    name, found, host = bucket.rpartition("@")
    if not found:
        return text, None, False
    if address_of(text).scheme != "abfss":
        _check_conn_id(name, scheme)
        return f"{scheme}://{host}{slash}{key}", name, False
    if "." in host:
        # container@account.host, or conn_id@container@account.host
        conn_id, both, container = name.rpartition("@")
        if not both:
            return text, None, False
        _check_conn_id(conn_id, scheme)
        return f"{scheme}://{container}@{host}{slash}{key}", conn_id, False
    _check_conn_id(name, scheme)
    return f"{scheme}://{host}@{_UNKNOWN_ACCOUNT}.{_AZURE}{slash}{key}", name, True


def _check_conn_id(name: str, scheme: str) -> None:
    if not _CONN_ID.fullmatch(name):
        # Without the text: it may be a password.
        raise ConfigError(
            f"what is before the @ of an output {scheme}://... is the id of an Airflow connection: credentials belong into "
            "the connection, not into the address"
        )
