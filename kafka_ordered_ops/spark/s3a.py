"""Credentials of a window's output for Spark's own file system of S3, for the output's bucket alone."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.output.address import address_of, is_in_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The names of storage options, by what Hadoop calls the same. `obstore` takes each with and without ``aws_``.
_KEYS: Final = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
}
_TRUE: Final = ("true", "1", "yes", "on")

#: What belongs together, by the setting with which a session has all of it; and the variables from which Spark itself
#: sets that one. Options that a user gives go before those.
_TOGETHER: Final = {
    "access.key": (("access.key", "secret.key", "session.token"), ("AWS_ACCESS_KEY_ID",)),
    "endpoint": (
        ("endpoint", "path.style.access", "connection.ssl.enabled"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ),
    "endpoint.region": (("endpoint.region",), ()),
}

#: What was lent last for each bucket. Java keeps a bucket's file system, with its keys, for as long as the process lives.
_lent: Final[dict[str, Mapping[str, str]]] = {}
_lock: Final = threading.Lock()


def lend_credentials(
    spark: SparkSession, root: str, storage_options: Mapping[str, Any] | None
) -> None:
    """Give a session the storage options of an output in S3, except for what the session configures itself.

    They are set in the memory of Spark's driver, and reach executors with each job. They are in no setting of the
    session, so neither Spark's web page nor its event log shows them. A session of Spark Connect keeps its
    server's.
    """
    if not storage_options or not is_in_store(root) or not hasattr(spark, "_jsc"):
        return
    address = address_of(root)
    if address.scheme != "s3" or not (settings := _settings(storage_options)):
        return
    with _lock, _silent_py4j():
        _lend(spark, address.bucket, settings)


def _lend(spark: SparkSession, bucket: str, settings: Mapping[str, str]) -> None:
    context = spark.sparkContext
    hadoop: Any = context._jsc.hadoopConfiguration()
    prefix, lent = f"fs.s3a.bucket.{bucket}.", {}
    for first, (names, variables) in _TOGETHER.items():
        if first not in settings or _has_own(hadoop, bucket, first, variables):
            continue
        hadoop.set(_mark(bucket, first), "true")
        for name in names:
            if name in settings:
                hadoop.set(f"{prefix}{name}", settings[name])
                lent[name] = settings[name]
            elif name == "session.token":
                # Unset, the one of the process's variables would be sent with this key.
                hadoop.set(f"{prefix}{name}", "")
            else:
                hadoop.unset(f"{prefix}{name}")
    before = _lent.get(bucket)
    if before is not None and before != lent:
        if context.statusTracker().getActiveJobsIds():
            # They use it. The next call drops it.
            return
        _forget(context, hadoop, bucket)
    _lent[bucket] = lent


def _has_own(hadoop: Any, bucket: str, name: str, variables: tuple[str, ...]) -> bool:
    if hadoop.get(_mark(bucket, name)) is not None:
        return False
    if hadoop.get(f"fs.s3a.bucket.{bucket}.{name}"):
        return True
    found = hadoop.get(f"fs.s3a.{name}")
    return bool(found) and found not in map(os.environ.get, variables)


def _mark(bucket: str, name: str) -> str:
    return f"kafka.ordered.ops.lent.{bucket}.{name}"


def _forget(context: Any, hadoop: Any, bucket: str) -> None:
    """Close Java's file system of a bucket, which has the keys of before; the next use opens another one."""
    java = context._jvm
    java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI(f"s3a://{bucket}/"), hadoop).close()


@contextmanager
def _silent_py4j() -> Iterator[None]:
    """Keep calls into Java, with their arguments, out of a log that shows all there is."""
    loggers = [logging.getLogger(name) for name in ("py4j.java_gateway", "py4j.clientserver")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


def _settings(options: Mapping[str, Any]) -> dict[str, str]:
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    if (provider := given.get("credential_provider")) is not None:
        # Those of now: a job that lasts longer than them needs a provider of Hadoop's own.
        given |= provider()
    found = {_KEYS[name]: str(value) for name, value in given.items() if name in _KEYS and value}
    if endpoint := found.get("endpoint"):
        is_virtual = str(given.get("virtual_hosted_style_request", "")).lower() in _TRUE
        found["path.style.access"] = str(not is_virtual).lower()
        found["connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    return found
