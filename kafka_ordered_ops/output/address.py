"""Addresses of outputs in object stores and HDFS, such as ``s3://bucket/prefix``: one name for each place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.dead_letters import bad_name
from kafka_ordered_ops.disk.disk import CONTROL_FOLDER

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

#: One scheme for each store, by each of its aliases.
STORE_SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfss",
    "abfss": "abfss",
}

_HDFS: Final = "hdfs"

#: Hadoop's schemes, which Spark needs.
_SPARK_SCHEMES: Final = {"s3": "s3a"}

#: Halves of surrogate pairs are bytes that are not text.
_PLAIN_KEY: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff\\*?#%\[\]{}]+")

#: S3 limits keys to 1,024 bytes, and the names of a window, a stage and a file follow the root's.
_KEY_BYTES_MAX: Final = 512
#: The largest object that is read as a whole: another program may have written anything there.
SMALL_BYTES_MAX: Final = 64 * 1024**2
#: HDFS's default limit for one name in a path.
_HDFS_NAME_BYTES_MAX: Final = 255


@dataclass(frozen=True)
class Address:
    """A place in an object store."""

    scheme: str
    #: A bucket; in Azure ``container@account.dfs.core.windows.net``.
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def is_in_store(path: str) -> bool:
    """Return whether a path is in an object store."""
    scheme = SCHEME.match(path)
    return scheme is not None and scheme[1].lower() in STORE_SCHEMES


def is_local(path: str) -> bool:
    """Return whether a path is a local one, mounted file systems included."""
    return SCHEME.match(path) is None


def is_in_hdfs(path: str) -> bool:
    """Return whether a path is in HDFS."""
    scheme = SCHEME.match(path)
    return scheme is not None and scheme[1].lower() == _HDFS


def split_hdfs(path: str) -> tuple[str, str]:
    """Return host and path in HDFS: ``("hdfs://namenode:8020", "/lake/orders")``."""
    host, _, key = path.removeprefix(f"{_HDFS}://").partition("/")
    return f"{_HDFS}://{host}", f"/{key}"


def root_in_hdfs(text: str) -> str:
    """Return the normalized root of outputs in HDFS.

    Raises:
        ConfigError: a missing path, a user in the address, or a path that file systems read differently.
    """
    _, _, rest = text.partition(":")
    host, _, key = rest.removeprefix("//").partition("/")
    key = key.rstrip("/")
    if not rest.startswith("//") or not re.fullmatch(r"([A-Za-z0-9._-]+(:[0-9]+)?)?", host):
        # Without the text: there may be a password in it.
        raise ConfigError(
            "an output in HDFS is hdfs://namenode:8020/folder, hdfs://nameservice/folder, or hdfs:///folder with "
            "fs.defaultFS; the user is set with HADOOP_USER_NAME, or by Kerberos"
        )
    if not key:
        raise ConfigError(
            f"the output {text!r} is a whole file system: name a folder in it, such as {text.rstrip('/')}/lake/orders. What "
            "readers must not see is stored beside the folder"
        )
    _check_key(text, key)
    if ":" in key or any(len(part.encode()) > _HDFS_NAME_BYTES_MAX for part in key.split("/")):
        raise ConfigError(
            f"the output {text!r} cannot be a folder: HDFS does not allow colons in a name, nor names of more than "
            f"{_HDFS_NAME_BYTES_MAX} bytes"
        )
    # The host keeps its case: a nameservice is a name in Hadoop's settings.
    return f"{_HDFS}://{host}/{key}"


def address_of(path: str) -> Address:
    """Return the parts of a path in an object store; raise `ConfigError` for a path without a bucket."""
    scheme, _, rest = path.partition(":")
    bucket, _, key = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not bucket or scheme.lower() not in STORE_SCHEMES:
        raise ConfigError(f"{path!r} names no bucket: write it as s3://bucket/prefix")
    return Address(STORE_SCHEMES[scheme.lower()], bucket, key.rstrip("/"))


def root_in_store(text: str) -> str:
    """Return the normalized root of outputs in an object store.

    Raises:
        ConfigError: a missing bucket, a bare bucket, or a prefix that stores and file systems read differently.
    """
    address = address_of(text)
    if address.scheme != "abfss" and not re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9._-]*", address.bucket
    ):
        # Without the text: there may be a password in it.
        raise ConfigError(
            f"the bucket of an output {address.scheme}://... is letters, digits, '.', '_' and '-': give credentials with "
            "storage_options, not in the address"
        )
    if address.scheme == "abfss" and not re.fullmatch(r"[a-z0-9$-]+@[a-z0-9.-]+", address.bucket):
        raise ConfigError(
            f"{text!r} names no container of an account: write it as "
            "abfss://container@account.dfs.core.windows.net/prefix"
        )
    if not address.key:
        raise ConfigError(
            f"the output {text!r} is a bare bucket: name a prefix below it, such as {text.rstrip('/')}/orders. What "
            "readers must not see is stored beside the prefix"
        )
    _check_key(text, address.key)
    if len(address.key.encode()) > _KEY_BYTES_MAX:
        raise ConfigError(
            f"the output has a prefix of {len(address.key.encode()):,} bytes, and at most {_KEY_BYTES_MAX} are "
            "allowed: name a shorter one"
        )
    return str(address)


def _check_key(text: str, key: str) -> None:
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or not _PLAIN_KEY.fullmatch(key):
        raise ConfigError(
            f"the output {text!r} cannot be a prefix: use no empty part, no '.' or '..', and none of the characters "
            r"\ * ? # % [ ] { }, which readers take for patterns or escapes"
        )
    if parts[-1] == CONTROL_FOLDER:
        raise ConfigError(f"the output {text!r} is this package's own folder: name another one")


def control_folder(root: str) -> str:
    """Return the folder of a root's stages and of the records of its owner."""
    parent, _, name = _resolved(root).rpartition("/")
    return f"{parent}/{CONTROL_FOLDER}/{name}"


def bad_root(root: str) -> str:
    """Return the root of the records that jobs leave out of the windows of a root, because they cannot be decoded."""
    return bad_name(_resolved(root))


def _resolved(root: str) -> str:
    # Beside the folder itself, so on its file system. Links are resolved: every path to the folder leads to one place.
    is_link = SCHEME.match(root) is None and os.path.islink(root)
    return os.path.realpath(root) if is_link else root


def spark_path(path: str) -> str:
    """Return a path in the form that Spark needs: without a scheme, Spark looks on its default file system."""
    scheme, separator, rest = path.partition("://")
    if separator:
        return f"{_SPARK_SCHEMES.get(scheme, scheme)}://{rest}"
    return path if SCHEME.match(path) else f"file://{path}"
