"""The output of a task: a folder, or a prefix in an object store with the connection that reaches it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from kafka_ordered_ops.airflow.compat import XComArg
from kafka_ordered_ops.airflow.storage import storage_options_of
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.templates import check_rendered
from kafka_ordered_ops.delivery.arguments import check_names
from kafka_ordered_ops.delivery.full_paths import check_full_path
from kafka_ordered_ops.output.address import address_of, is_in_store
from kafka_ordered_ops.spec.destination import Destination, Folder, check_output, destination_of
from kafka_ordered_ops.spec.table import Table


class ObjectPath(Protocol):
    """The interface of Airflow's ``ObjectStoragePath``: its module loads fsspec, which no DAG's file needs."""

    @property
    def protocol(self) -> str:
        """The scheme."""

    @property
    def conn_id(self) -> str | None:
        """The connection."""


#: The types of a task's ``output``; a mapping has the fields of a `Folder`.
Output = str | os.PathLike[str] | ObjectPath | Mapping[str, Any] | Destination | XComArg | None

#: A connection's id, as Airflow allows it, without characters of passwords or paths.
_CONN_ID: Final = re.compile(r"[A-Za-z0-9_.#!()-]+")

#: Stands for the account of a connection that is not read yet, where only the form of an output is checked.
_UNKNOWN_ACCOUNT: Final = "account"

_AZURE: Final = "dfs.core.windows.net"


@dataclass(frozen=True)
class Place:
    """A known output, and its connection."""

    #: The output without a connection, in the form of all other hosts.
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
                f"connection {self.conn_id} has no account name: write the output as "
                f"abfss://container@account.{_AZURE}/prefix, with storage_conn_id"
            )
        return self.root.replace(f"@{_UNKNOWN_ACCOUNT}.", f"@{account}.", 1), options


def text_of(output: Any) -> Any:
    """Return an ``ObjectStoragePath`` as text, with its connection; anything else unchanged.

    Templates in it are kept, and a task's rendered fields show the name of the connection only.
    """
    if isinstance(output, Folder) or not hasattr(output, "storage_options"):
        return os.fspath(output) if isinstance(output, os.PathLike) else output
    # Airflow 3.1 has the connection in the text or the options, later versions have an attribute.
    conn_id = getattr(output, "conn_id", None) or output.storage_options.get("conn_id")
    if conn_id is None:
        return str(output)
    scheme, _, rest = str(output).partition("://")
    return f"{scheme}://{conn_id}@{rest.removeprefix(f'{conn_id}@')}"


def place_of(output: Any, storage_conn_id: str | None) -> Place | None:
    """Return the place of an output; None without an output.

    Raises:
        ConfigError: an invalid output or a relative path, two connections for it, or a connection for a local folder.
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
    used_conn_id = named if conn_id is None else conn_id
    if lacks_account and used_conn_id is None:
        # An output such as `abfss://container/prefix`: the error states the missing part.
        check_output(text)
    return Place(check_output(root), used_conn_id, lacks_account)


def opened(output: Any, *, travels: bool) -> Destination | None:
    """Return the destination of the windows, with the credentials of the connection, which is read on the worker.

    Args:
        output: the rendered output.
        travels: whether the job is another process, which receives the credentials.

    Raises:
        AirflowNotFoundException, ConfigError: as for `place_of` and `Place.opened`.
    """
    if isinstance(output, Mapping):
        output = _folder_of(output)
    location = _path_of(output)
    if location is None:
        return destination_of(output)
    place = place_of(*location)
    if place is None:
        return None
    root, options = place.opened(travels=travels)
    if not isinstance(output, Folder):
        return Folder(root, storage_options=options)
    check_rendered(output, "the output")
    return Folder(root, output.partition_by, output.storage_options if options is None else options)


def opened_folder(output: Any) -> Folder | None:
    """Return the folder of a task that publishes the files of other tasks; raise `ConfigError` for any other place."""
    to = opened(output, travels=False)
    if not isinstance(to, Folder | None):
        raise ConfigError(f"output is {shown(output)}: give a path or a Folder")
    return to


def check_known_output(output: Any) -> None:
    """Raise `ConfigError` for an invalid output or a relative path, as far as they are known."""
    location = _path_of(output)
    if location is None:
        if is_literal(output) and not isinstance(output, Mapping | Table):
            destination_of(output)
        return
    path, conn_id = location
    if is_literal(path):
        place_of(path, conn_id if is_literal(conn_id) else None)


def _path_of(output: Any) -> tuple[Any, str | None] | None:
    """Return the path of an output and its connection; None for an output without files."""
    if isinstance(output, Folder):
        return output.path, output.storage_conn_id
    return (output, None) if isinstance(output, str | os.PathLike) else None


def _folder_of(fields_: Mapping[str, Any]) -> Folder:
    check_names("output", map(str, fields_), [field.name for field in fields(Folder)])
    if "path" not in fields_:
        raise ConfigError("output is a mapping without a path: give the fields of a Folder")
    return Folder(**fields_)


def _split(text: str) -> tuple[str, str | None, bool]:
    """Return an output without a connection, the connection in it, and whether an account is missing."""
    scheme, _, rest = text.partition("://")
    bucket, slash, key = rest.partition("/")
    name, at_sign, host = bucket.rpartition("@")
    if not at_sign:
        return text, None, False
    if address_of(text).scheme != "abfss":
        _check_conn_id(name, scheme)
        return f"{scheme}://{host}{slash}{key}", name, False
    if "." in host:
        # container@account.host, or conn_id@container@account.host
        conn_id, second_at_sign, container = name.rpartition("@")
        if not second_at_sign:
            return text, None, False
        _check_conn_id(conn_id, scheme)
        return f"{scheme}://{container}@{host}{slash}{key}", conn_id, False
    _check_conn_id(name, scheme)
    return f"{scheme}://{host}@{_UNKNOWN_ACCOUNT}.{_AZURE}{slash}{key}", name, True


def _check_conn_id(name: str, scheme: str) -> None:
    if not _CONN_ID.fullmatch(name):
        # The message leaves the text out: it may be a password.
        raise ConfigError(
            f"the part before the @ of an output {scheme}://... must be the id of an Airflow connection: credentials belong "
            "in the connection, not in the address"
        )
