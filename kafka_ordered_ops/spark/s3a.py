"""Pass the credentials of a window's output to Spark's own S3 file system, for the output's bucket alone."""

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

#: Hadoop's names for storage options. `obstore` accepts each option with and without ``aws_``.
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

#: Settings that belong together, by the setting that shows that a session has its own; and the variables from which
#: Spark itself sets that one. The user's options take precedence over these variables.
_TOGETHER: Final = {
    "access.key": (("access.key", "secret.key", "session.token"), ("AWS_ACCESS_KEY_ID",)),
    "endpoint": (
        ("endpoint", "path.style.access", "connection.ssl.enabled"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ),
    "endpoint.region": (("endpoint.region",), ()),
}

#: The settings that each bucket was lent last. Java caches a bucket's file system, with its keys, until the process ends.
_lent: Final[dict[str, Mapping[str, str]]] = {}
_lock: Final = threading.Lock()


def lend_credentials(
    spark: SparkSession, root: str, storage_options: Mapping[str, Any] | None
) -> None:
    """Give a session the storage options of an output in S3, except for what the session configures itself.

    They are set in the memory of Spark's driver, and sent to executors with each job. They are not among the settings of
    the session, so neither Spark's web page nor its event log shows them. A session of Spark Connect keeps those of its
    server.
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
                # If it were unset, the token from the environment would be sent with this key.
                hadoop.set(f"{prefix}{name}", "")
            else:
                hadoop.unset(f"{prefix}{name}")
    before = _lent.get(bucket)
    if before is not None and before != lent:
        if context.statusTracker().getActiveJobsIds():
            # Running jobs use the cached file system. The next call drops it.
            return
        _forget(context, hadoop, bucket)
    _lent[bucket] = lent


def _has_own(hadoop: Any, bucket: str, name: str, variables: tuple[str, ...]) -> bool:
    if hadoop.get(_mark(bucket, name)) is not None:
        return False
    if hadoop.get(f"fs.s3a.bucket.{bucket}.{name}"):
        return True
    value = hadoop.get(f"fs.s3a.{name}")
    return bool(value) and value not in map(os.environ.get, variables)


def _mark(bucket: str, name: str) -> str:
    return f"kafka.ordered.ops.lent.{bucket}.{name}"


def _forget(context: Any, hadoop: Any, bucket: str) -> None:
    """Close Java's file system of a bucket, which has the previous keys; the next use opens a new one."""
    java = context._jvm
    java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI(f"s3a://{bucket}/"), hadoop).close()


@contextmanager
def _silent_py4j() -> Iterator[None]:
    """Keep calls into Java, with their arguments, out of a log at level DEBUG."""
    loggers = [logging.getLogger(name) for name in ("py4j.java_gateway", "py4j.clientserver")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _settings(options: Mapping[str, Any]) -> dict[str, str]:
    values = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    if (provider := values.get("credential_provider")) is not None:
        # The current credentials: a job that runs longer than they are valid needs a provider of Hadoop's own.
        values |= provider()
    settings = {
        _KEYS[name]: str(value) for name, value in values.items() if name in _KEYS and value
    }
    if endpoint := settings.get("endpoint"):
        is_virtual = str(values.get("virtual_hosted_style_request", "")).lower() in _TRUE
        settings["path.style.access"] = str(not is_virtual).lower()
        settings["connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    return settings
