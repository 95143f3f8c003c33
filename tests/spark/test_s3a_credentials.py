"""Which of Hadoop's settings a session gets from the storage options of an output in S3."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ordered_ops.spark import s3a
from kafka_ordered_ops.spark.s3a import lend_credentials

ROOT = "s3://bucket/lake/orders"
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "canary-s3cret"}


class Hadoop(dict[str, str]):
    """Hadoop's configuration, as Java's object has it; py4j logs every call."""

    def __init__(self, own: dict[str, str]) -> None:
        super().__init__(own)
        self.jobs: tuple[int, ...] = ()
        self.closed: list[str] = []

    def set(self, key: str, value: str) -> None:
        logging.getLogger("py4j.clientserver").debug("Command to send: %s %s", key, value)
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)

    @property
    def of_bucket(self) -> dict[str, str]:
        prefix = "fs.s3a.bucket.bucket."
        return {
            key.removeprefix(prefix): one for key, one in self.items() if key.startswith(prefix)
        }


class JVM:
    """The classes of Java that are used: file systems that can be closed."""

    def __init__(self, hadoop: Hadoop) -> None:
        def get(uri: str, _: Hadoop) -> Any:
            return SimpleNamespace(close=lambda: hadoop.closed.append(uri))

        self.java = SimpleNamespace(net=SimpleNamespace(URI=str))
        kinds = SimpleNamespace(fs=SimpleNamespace(FileSystem=SimpleNamespace(get=get)))
        self.org = SimpleNamespace(apache=SimpleNamespace(hadoop=kinds))


@pytest.fixture(autouse=True)
def nothing_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has lent nothing yet."""
    monkeypatch.setattr(s3a, "_lent", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


def session(own: dict[str, str] | None = None) -> tuple[Any, Hadoop]:
    """A session with settings of its own."""
    hadoop = Hadoop(own or {})
    java = SimpleNamespace(hadoopConfiguration=lambda: hadoop)
    jobs = SimpleNamespace(getActiveJobsIds=lambda: hadoop.jobs)
    context = SimpleNamespace(_jsc=java, statusTracker=lambda: jobs, _jvm=JVM(hadoop))
    return SimpleNamespace(_jsc=java, sparkContext=context), hadoop


def test_a_server_s_options_are_hadoop_s_for_the_bucket(caplog: pytest.LogCaptureFixture) -> None:
    """By all the names that people write them with; and py4j logs none of them."""
    caplog.set_level(logging.DEBUG)
    spark, hadoop = session()
    where = {"region": "eu-west-1", "AWS_ENDPOINT_URL": "http://minio:9000", "timeout": "3s"}
    lend_credentials(spark, ROOT, {**KEYS, **where})
    assert hadoop.of_bucket == {
        "access.key": "id",
        "secret.key": "canary-s3cret",
        "session.token": "",
        "endpoint.region": "eu-west-1",
        "endpoint": "http://minio:9000",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    assert "canary" not in caplog.text


def test_newer_keys_replace_those_that_were_lent() -> None:
    """A session token goes with its key, a provider is asked again, and Java's file system has the keys of before."""
    spark, hadoop = session()
    tokens = iter(["first", "first", None])

    def provider() -> dict[str, Any]:
        return {"access_key_id": "id", "secret_access_key": "s", "token": next(tokens)}

    for _ in range(2):
        lend_credentials(spark, ROOT, {"credential_provider": provider})
        assert hadoop.of_bucket["session.token"] == "first"
        assert hadoop.closed == []
    lend_credentials(spark, ROOT, {"credential_provider": provider})
    assert hadoop.of_bucket == {"access.key": "id", "secret.key": "s", "session.token": ""}
    assert hadoop.closed == ["s3a://bucket/"]


def test_a_file_system_in_use_stays_open() -> None:
    """Until the first call that finds no job running."""
    spark, hadoop = session()
    lend_credentials(spark, ROOT, KEYS)
    hadoop.jobs = (7,)
    newer = {**KEYS, "aws_secret_access_key": "newer"}
    lend_credentials(spark, ROOT, newer)
    assert (hadoop.of_bucket["secret.key"], hadoop.closed) == ("newer", [])
    hadoop.jobs = ()
    for _ in range(2):
        lend_credentials(spark, ROOT, newer)
        assert hadoop.closed == ["s3a://bucket/"]


@pytest.mark.parametrize("prefix", ["fs.s3a.", "fs.s3a.bucket.bucket."])
def test_a_session_s_own_settings_stay(prefix: str) -> None:
    """The key with its secret, and the endpoint, which executors may know by another name than the driver."""
    own = {f"{prefix}access.key": "own", f"{prefix}endpoint": "http://inside:9000"}
    spark, hadoop = session(own)
    where = {"aws_endpoint": "http://outside:9000", "aws_region": "r"}
    lend_credentials(spark, ROOT, {**KEYS, **where})
    mark = "kafka.ordered.ops.lent.bucket.endpoint.region"
    assert hadoop == {**own, "fs.s3a.bucket.bucket.endpoint.region": "r", mark: "true"}


def test_options_go_before_the_variables_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself sets these for all buckets from the driver's environment; a role's token is not sent with another key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://another")
    own = {"access.key": "another", "endpoint": "http://another", "session.token": "another"}
    spark, hadoop = session({f"fs.s3a.{name}": value for name, value in own.items()})
    lend_credentials(spark, ROOT, {**KEYS, "endpoint": "https://minio"})
    assert hadoop.of_bucket == {
        "access.key": "id",
        "secret.key": "canary-s3cret",
        "session.token": "",
        "endpoint": "https://minio",
        "path.style.access": "true",
        "connection.ssl.enabled": "true",
    }


@pytest.mark.parametrize(
    ("root", "options"),
    [(ROOT, None), (ROOT, {"timeout": "3s"}), ("gs://bucket/x", KEYS), ("/lake", KEYS)],
)
def test_nothing_is_set_where_nothing_is_given_for_s3(
    root: str, options: dict[str, str] | None
) -> None:
    """A session of Spark Connect has no Java here at all."""
    spark, hadoop = session()
    lend_credentials(spark, root, options)
    lend_credentials(SimpleNamespace(), ROOT, KEYS)  # type: ignore[arg-type]
    assert hadoop == {}
