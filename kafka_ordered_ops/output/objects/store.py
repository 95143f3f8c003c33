"""The only module that calls obstore: the objects of a bucket, conditional writes included.

If a store refuses an operation, the `OSError` that a file system would raise is raised, with the bucket, the key and
the missing right. It never contains credentials or signed addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import SMALL_BYTES_MAX, Address, address_of
from kafka_ordered_ops.output.objects.faults import raise_named, reason_of, ridden_out

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Concurrent requests: enough to hide the latency of the store, few enough for its limits.
REQUESTS_AT_ONCE: Final = 16

#: Every store deletes this many objects in one request.
_DELETED_AT_ONCE: Final = 250

#: S3 copies no larger object in one request.
COPIED_BY_ONE_REQUEST_MAX: Final = 5 * 1000**3
#: A larger object is read and written in parts of this size; at most `_PARTS_AT_ONCE` of them wait for the store.
_PART_BYTES: Final = 32 * 1024**2
_PARTS_AT_ONCE: Final = 4
#: The number of objects that are read as examples.
_SOME: Final = 20
#: S3 allows 10,000.
_PARTS_MAX: Final = 9_000

#: A copy of several GB is one request, which is answered at its end.
_CLIENT: Final = {"timeout": timedelta(minutes=5), "connect_timeout": timedelta(seconds=10)}
#: The retries of one call of the library; see `faults`.
_RETRIES: Final = {"max_retries": 5, "retry_timeout": timedelta(minutes=1)}

#: Options of the connection; all others are the store's.
_CLIENT_KEYS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
#: Variables with the address of a server that is not the cloud's own.
_ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
)
_AZURE: Final = "dfs.core.windows.net"
#: Options and variables that set a server instead of the one in the output's address.
_PLACE_OF_AZURE: Final = re.compile(
    r"(azure_)?(storage_)?(endpoint|use_emulator|use_fabric_endpoint)", re.IGNORECASE
)
_CREDENTIAL_PROVIDER: Final = "credential_provider"

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Listed:
    """An object in a listing."""

    size: int
    modified: datetime


@dataclass(frozen=True)
class State:
    """The identity of one state of an object, as the store reports it."""

    e_tag: str | None
    version: str | None

    def mode(self) -> dict[str, str]:
        """Return the condition of a write that replaces this state only."""
        named = {"e_tag": self.e_tag, "version": self.version}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Found:
    """The content of an object, and its state."""

    content: bytes
    state: State


class Copy(NamedTuple):
    """An object to copy, by absolute paths."""

    source: str
    target: str
    #: From its listing or its seal.
    size: int


class Store:
    """The objects of one bucket. Paths are absolute, with scheme and bucket.

    Every method raises `PermissionError` for a missing right, `FileNotFoundError` for a missing object or bucket, and
    `OSError` for any other failure.
    """

    def __init__(self, address: Address, store: ObjectStore) -> None:
        self._address, self._store = address, store

    def get(self, path: str) -> Found | None:
        """Return a small object, cut one byte past `SMALL_BYTES_MAX`; None if there is none."""
        import obstore

        store, key, end = self._store, self._key(path), SMALL_BYTES_MAX + 1

        def get() -> Found:
            result = obstore.get(store, key)
            small = result.meta["size"] < end
            content = result.bytes() if small else obstore.get_range(store, key, start=0, end=end)
            return Found(bytes(content), State(result.meta["e_tag"], result.meta["version"]))

        try:
            return self._asked("get", path, get)
        except FileNotFoundError:
            return None

    def tail(self, path: str, length: int) -> bytes:
        """Return the last bytes of an object."""
        import obstore

        key = self._key(path)

        def tail() -> bytes:
            if self._address.scheme != "abfss":
                result = obstore.get(self._store, key, options={"range": {"suffix": length}})
                return bytes(result.bytes())
            # Azure does not support ranges from the end.
            size = obstore.head(self._store, key)["size"]
            return bytes(obstore.get_range(self._store, key, start=max(0, size - length), end=size))

        return self._asked("get", path, tail)

    def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object atomically, by one request: no upload is left pending."""
        import obstore

        key, data = self._key(path), cast("Any", content)
        self._asked("put", path, lambda: obstore.put(self._store, key, data, use_multipart=False))

    def put_if(self, path: str, content: bytes, seen: State | None) -> State | None:
        """Write an object unless another process has changed it since; return its new state.

        Args:
            path: the object.
            content: what to write.
            seen: the state that was read before; None if there was no object.

        Returns:
            None if the object has changed, even by this very call, if its answer was lost.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        key, mode = self._key(path), cast("Any", "create" if seen is None else seen.mode())

        def put() -> State | None:
            try:
                written = obstore.put(self._store, key, content, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return None
            return State(written["e_tag"], written["version"])

        return self._asked("put", path, put)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy objects within the store, several at a time; those too large for that are copied through this process."""
        import obstore

        def copy(item: Copy) -> None:
            source, target = self._key(item.source), self._key(item.target)
            self._asked("copy", item.source, lambda: obstore.copy(self._store, source, target))

        all_at_once(copy, [item for item in copies if item.size <= COPIED_BY_ONE_REQUEST_MAX])
        # One after the other, so that only one of them takes memory at a time.
        for item in copies:
            if item.size > COPIED_BY_ONE_REQUEST_MAX:
                self._asked("copy", item.source, partial(self._copy_by_parts, item))

    def _copy_by_parts(self, item: Copy) -> None:
        """Read an object and write it elsewhere, in parts; the copy appears atomically."""
        import obstore

        source = self._key(item.source)
        part = max(_PART_BYTES, -(-item.size // _PARTS_MAX))
        with ThreadPoolExecutor(1, "parts") as reader:
            e_tag = obstore.head(self._store, source)["e_tag"]

            def read(start: int) -> Any:
                range_ = (start, min(start + part, item.size))
                result = obstore.get(self._store, source, options={"range": range_})
                if result.meta["e_tag"] != e_tag:
                    raise OSError("it was replaced while it was read")
                return result.bytes()

            def parts() -> Iterator[Any]:
                # In its own thread: the library accepts no call while it asks for the next part.
                following = reader.submit(read, 0)
                for start in range(part, item.size, part):
                    content, following = following.result(), reader.submit(read, start)
                    yield content
                yield following.result()

            obstore.put(
                self._store,
                self._key(item.target),
                parts(),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def listed(self, folder: str) -> dict[str, Listed]:
        """Return the objects below a folder, by their names in it, sorted."""
        import obstore

        prefix = f"{self._key(folder)}/"

        def listed() -> dict[str, Listed]:
            return {
                entry["path"].removeprefix(prefix): Listed(entry["size"], entry["last_modified"])
                for batch in obstore.list(self._store, prefix=prefix)
                for entry in batch
            }

        return dict(sorted(self._asked("list", folder, listed).items()))

    def some(self, folder: str) -> list[str]:
        """Return the names of some objects below a folder, by one request; all names if there are few."""
        import obstore

        prefix = f"{self._key(folder)}/"

        def some() -> list[str]:
            batch = next(iter(obstore.list(self._store, prefix=prefix, chunk_size=_SOME)), ())
            return [entry["path"].removeprefix(prefix) for entry in batch]

        return self._asked("list", folder, some)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        import obstore

        prefix = f"{self._key(folder)}/"
        result = self._asked(
            "list", folder, lambda: obstore.list_with_delimiter(self._store, prefix=prefix)
        )
        return sorted(path.removeprefix(prefix).rstrip("/") for path in result["common_prefixes"])

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; a missing one is not an error."""
        import obstore

        keys = [self._key(path) for path in paths]
        batches = [keys[n : n + _DELETED_AT_ONCE] for n in range(0, len(keys), _DELETED_AT_ONCE)]
        for batch in batches:
            try:
                self._asked(
                    "delete",
                    f"{self._bucket}/{batch[0]}",
                    partial(obstore.delete, self._store, batch),
                )
            except FileNotFoundError:
                # Some stores then keep the other objects.
                for key in batch:
                    self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        import obstore

        with suppress(FileNotFoundError):
            self._asked("delete", f"{self._bucket}/{key}", lambda: obstore.delete(self._store, key))

    @property
    def _bucket(self) -> str:
        return f"{self._address.scheme}://{self._address.bucket}"

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._bucket}/")

    def _asked(self, operation: str, path: str, call: Callable[[], _Answer]) -> _Answer:
        """Return the result of a call of the library; see `ridden_out` and `raise_named`."""
        from obstore.exceptions import BaseError

        try:
            return ridden_out(f"{path}: {operation}", call)
        except (BaseError, OSError) as error:
            raise_named(self._address, operation, path, error)


def all_at_once(
    call: Callable[[_Argument], _Answer], arguments: Sequence[_Argument]
) -> list[_Answer]:
    """Return the result for each argument, several at a time; raise the first error once no call runs any more."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="objects") as pool:
        # In the caller's context, so that its deadline applies.
        futures = [pool.submit(copy_context().run, call, argument) for argument in arguments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def open_store(path: str, options: Mapping[str, Any] | None = None) -> Store:
    """Return the store of a path, without connecting.

    Args:
        path: any path in it.
        options: credentials and settings; None uses those of the environment.

    Raises:
        ConfigError: obstore is not installed, or an option is unknown or of the wrong type.
    """
    address = address_of(path)
    try:
        import obstore as _  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"an output in {address.scheme}:// needs obstore, which is not installed: run "
            "pip install 'kafka-ordered-ops[object-stores]'"
        ) from None
    bucket = Address(address.scheme, address.bucket, "")
    storage_options = check_options(options)
    try:
        return _connected(bucket, tuple(sorted(storage_options.items())), surroundings())
    except TypeError:
        # An option without a hash, such as headers: the connection is not shared.
        return Store(bucket, _connect(bucket, storage_options))


def check_options(options: object) -> dict[str, Any]:
    """Return storage options; raise `ConfigError`, without values, unless they are a mapping by name."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(
            f"storage_options is a {type(options).__name__}: give a mapping of names and values, such as "
            "{'aws_region': 'eu-west-1'}"
        )
    return dict(options)


def _without_values(text: str, options: Mapping[str, Any]) -> str:
    """Return a text with the options' values masked: the library quotes values that it cannot parse."""
    # A longer value may contain a shorter one.
    for value in sorted(map(str, options.values()), key=len, reverse=True):
        text = text.replace(f'"{value}"', "***") if value else text
    return text


def surroundings() -> tuple[object, ...]:
    """Return what a connection also depends on: the process and its environment."""
    stores = ("AWS_", "AZURE_", "GOOGLE_")
    return (
        os.getpid(),
        *sorted(variable for variable in os.environ.items() if variable[0].startswith(stores)),
    )


@lru_cache(maxsize=32)
def _connected(
    bucket: Address, options: tuple[tuple[str, Any], ...], _surroundings: tuple[object, ...]
) -> Store:
    return Store(bucket, _connect(bucket, dict(options)))


def _connect(bucket: Address, options: Mapping[str, Any]) -> ObjectStore:
    from obstore.exceptions import BaseError

    client: dict[str, Any] = dict(_CLIENT)
    config: dict[str, Any] = {}
    for name, value in options.items():
        if name != _CREDENTIAL_PROVIDER:
            (client if name in _CLIENT_KEYS else config)[name] = value
    endpoints = (*config.values(), *map(os.environ.get, _ENDPOINTS))
    if any(isinstance(endpoint, str) and endpoint.startswith("http://") for endpoint in endpoints):
        # An explicit http:// is intended.
        client.setdefault("allow_http", True)
    provider = options.get(_CREDENTIAL_PROVIDER) or _default_provider(bucket.scheme, config)
    try:
        return _built(bucket, config, client, provider)
    except (BaseError, TypeError, ValueError) as error:
        names = ", ".join(options) or "none"
        raise ConfigError(
            f"the store {bucket.scheme}://{bucket.bucket} cannot be opened with these storage_options ({names}): "
            f"{_without_values(reason_of(error), options)}"
        ) from None


def _built(
    bucket: Address, config: Mapping[str, Any], client: Mapping[str, Any], provider: Any
) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    more: dict[str, Any] = {"client_options": client, "retry_config": _RETRIES}
    if provider is not None:
        more["credential_provider"] = provider
    if bucket.scheme == "s3":
        return S3Store(bucket.bucket, config=dict(config), **more)  # type: ignore[arg-type]
    if bucket.scheme == "gs":
        return GCSStore(bucket.bucket, config=dict(config), **more)  # type: ignore[arg-type]
    container, _, host = bucket.bucket.partition("@")
    account, _, domain = host.partition(".")
    if not any(name.endswith("account_name") for name in config):
        config = {"account_name": account, **config}
    if domain != _AZURE and not any(map(_PLACE_OF_AZURE.fullmatch, (*config, *os.environ))):
        # A domain of another Azure cloud; the protocol is that of blobs.
        config = {"endpoint": f"https://{host.replace('.dfs.', '.blob.', 1)}", **config}
    return AzureStore(container, config=dict(config), **more)  # type: ignore[arg-type]


def _default_provider(scheme: str, config: Mapping[str, Any]) -> Any:
    """Return a credential provider that supports profiles, if boto3 is installed: the library's own does not."""
    if scheme != "s3" or any("access_key" in name or "skip" in name for name in config):
        return None
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    if "AWS_PROFILE" not in os.environ and not any(
        os.path.exists(os.path.expanduser(file)) for file in files
    ):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:
        # No credentials there: the machine or the container may have some.
        return None
