"""A real broker for the tests, fresh topics and groups on it, and how many random examples to try."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, settings

from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.embedded.jars import class_path
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.examples import BY_DAY, BY_NIGHT
from tests.support.own_network import OwnNetwork, own_network
from tests.support.spark_classes import use_archive
from tests.support.three_brokers import ThreeBrokers, three_brokers
from tests.support.windows_support import BASE_MS


def _is_there(library: str) -> bool:
    """Whether a library, or a part of one, is installed."""
    parent, _, _ = library.rpartition(".")
    return (not parent or _is_there(parent)) and find_spec(library) is not None


#: Only the environment of the newest Spark has the hosts, and every extra, as well.
collect_ignore_glob = [
    pattern
    for library, patterns in {
        "airflow": ["host_airflow/*", "delivery/*", "fuzz/*"],
        "dagster": ["host_dagster/*", "delivery/*"],
        "fastapi": [
            "relay/test_client*.py",
            "relay/test_http*.py",
            "relay/test_page.py",
            "relay/test_relay_*.py",
        ],
        "grpc_tools": [
            "decoding/test_protobuf*.py",
            "decoding/test_registry.py",
            "native/test_native_protobuf.py",
            "spark/test_spark_decoded.py",
        ],
        "authlib": ["decoding/test_frames.py"],
        "openlineage": [
            "cli/test_cli_lineage.py",
            "delivery/test_run_lineage.py",
            "host_airflow/test_airflow_lineage.py",
            "spark/test_table_lineage.py",
        ],
        "opentelemetry.sdk": ["processing/test_metrics.py", "windows/test_window_metrics.py"],
        "opentelemetry.exporter.prometheus": ["docs/test_prometheus.py"],
        "prometheus_client": ["cli/test_watch.py"],
    }.items()
    if not _is_there(library)
    for pattern in patterns
]

# Airflow writes its configuration into this folder as soon as it is imported.
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="kafka-ordered-ops-airflow-")
atexit.register(shutil.rmtree, _AIRFLOW_HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

use_archive(os.environ)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with Ctrl-C ignored, and every child of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

BOOTSTRAP_VARIABLE = "KAFKA_ORDERED_OPS_TEST_BOOTSTRAP"

# Kafka 4, as the embedded one: transactions and groups follow other rules in Kafka 3.
_IMAGE = "confluentinc/cp-kafka:8.1.0"

_TIMEOUT_S = 30.0
_DOCKER_TIMEOUT_S = 5

# A topic's name may have 249 characters, and a parametrised test's can be longer.
_NAME_LENGTH = 100

# No deadline: on a busy machine it fails for reasons that no example can reproduce.
# print_blob: the line it prints replays a failure on another machine.
settings.register_profile("dev", deadline=None, print_blob=True, max_examples=BY_DAY)
# A fresh checkout has no earlier failures to replay, and nobody keeps the ones it finds.
settings.register_profile("ci", settings.get_profile("dev"), database=None)
settings.register_profile(
    "nightly",
    settings.get_profile("ci"),
    max_examples=BY_NIGHT,
    # Large examples are the point of the long run.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_collection() -> None:
    """Collects no garbage while modules are imported: all of it stays, and would be looked at again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leaves out what was imported from each later collection."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Lets pass what older Sparks and Airflows do: warnings are errors here."""
    if version("pyspark").startswith(("4.0.", "4.1.")):
        # It leaves the socket of a `collect` for the garbage collector to close.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    # What Airflow 3.1 itself does with the newest of its operators and of SQLAlchemy.
    for told in (
        r"The `airflow\.operators\.branch\.BaseBranchOperator`:FutureWarning",
        "The ``noload`` loader strategy:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{told}")


#: ``(topic, partition, key, value, timestamp in ms, headers)``. Partition None: the client chooses;
#: timestamp None: it takes the time of day.
Record = tuple[
    str,
    int | None,
    bytes | None,
    bytes | None,
    int | None,
    Sequence[tuple[str, bytes | None]],
]


class MakeTopic(Protocol):
    """Creates a topic and returns its name, which is a new one unless given."""

    def __call__(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str: ...


class Produce(Protocol):
    """Writes the records and waits until all are stored; returns their offsets, in the same order."""

    def __call__(self, records: Iterable[Record]) -> list[int]: ...


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of a real broker: the one named in the environment, one in Docker, or our own."""
    if named := os.environ.get(BOOTSTRAP_VARIABLE):
        yield named
        return
    with _broker_in_docker() if _docker_answers() else EmbeddedKafka() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def _cluster(pytestconfig: pytest.Config) -> Iterator[tuple[OwnNetwork, ThreeBrokers]]:
    class_path()  # downloads what is missing, which the network of the brokers cannot
    with own_network() as network:
        terminal = pytestconfig.pluginmanager.getplugin("terminalreporter")
        if network.reason and terminal is not None:
            terminal.write_line(f"Three brokers on this machine's own network: {network.reason}")
        with ExitStack() as stack:
            with network.entered():
                brokers = stack.enter_context(three_brokers())
            yield network, brokers


@pytest.fixture
def brokers(_cluster: tuple[OwnNetwork, ThreeBrokers]) -> Iterator[ThreeBrokers]:
    """Three brokers, all of them well, in a network of their own where that can be had.

    The test's own connections and processes are in that network too, so it can reach no other broker.
    """
    network, cluster = _cluster
    with network.entered():
        cluster.heal()
        yield cluster


@pytest.fixture(scope="session")
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(_admin: AdminClient, request: pytest.FixtureRequest) -> Iterator[MakeTopic]:
    """Makes topics of this test's own, and deletes them after it: a broker looks at each of thousands every second.

    Nothing expires in them unless `config` says so: a record with an old timestamp would be deleted by
    Kafka's default retention within seconds.
    """
    made: list[str] = []
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:_NAME_LENGTH]

    def make(
        name: str | None = None,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        name = name or f"{stem}-{uuid.uuid4().hex[:12]}"
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=1,
            config={"retention.ms": "-1", **(config or {})},
        )
        _admin.create_topics([new])[name].result(_TIMEOUT_S)
        made.append(name)
        _wait_until_usable(_admin, name, partitions)
        return name

    yield make
    if made:
        _admin.delete_topics(made)


@pytest.fixture
def group_id(request: pytest.FixtureRequest) -> str:
    """The name of a consumer group that nobody has used."""
    return f"{request.node.originalname}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def produce(bootstrap: str) -> Produce:
    """Writes records, in order and each once, and waits until the broker has stored them."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def write(records: Iterable[Record]) -> list[int]:
        failures: list[KafkaError] = []
        offsets: dict[int, int] = {}

        def on_delivery(index: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            elif (offset := message.offset()) is not None:
                offsets[index] = offset

        for index, (name, partition, key, value, timestamp_ms, headers) in enumerate(records):
            # The client takes an absent argument for "choose", and refuses None.
            chosen: dict[str, Any] = {}
            if partition is not None:
                chosen["partition"] = partition
            if timestamp_ms is not None:
                chosen["timestamp"] = timestamp_ms
            producer.produce(
                name,
                value=value,
                key=key,
                headers=list(headers),
                on_delivery=functools.partial(on_delivery, index),
                **chosen,
            )
            producer.poll(0)
        left = producer.flush(_TIMEOUT_S)
        assert (failures, left) == ([], 0)
        return [offsets[index] for index in sorted(offsets)]

    return write


@pytest.fixture
def windows(bootstrap: str, group_id: str) -> Iterator[OrderedWindows]:
    """The service, for a fresh group."""
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=60) as service:
        yield service


@pytest.fixture
def orders(topic: MakeTopic, produce: Produce) -> str:
    """One partition; seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5."""
    name = topic()
    seconds = [0, 10, 20, 5, 30, 15]
    produce((name, 0, None, b"x", BASE_MS + s * 1000, ()) for s in seconds)
    return name


def _wait_until_usable(admin: AdminClient, name: str, partitions: int) -> None:
    """A topic exists before its partitions have leaders, and a client may be told either."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        # Asking like this creates no topic; of a broker's thousands, a list of all takes tens of milliseconds.
        asked = admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_S)[name]
        with suppress(KafkaException):
            found = asked.result(_TIMEOUT_S).partitions
            if len(found) == partitions and all(part.leader is not None for part in found):
                return
        assert time.monotonic() < deadline, f"{name} has no leaders after {_TIMEOUT_S} s"
        time.sleep(0.02)


class _HasBootstrap(Protocol):
    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class _Address:
    bootstrap: str


def _docker_answers() -> bool:
    """Whether an engine stands behind the Docker client, and not just the client is installed."""
    import docker
    from docker.errors import DockerException

    answers = True
    with warnings.catch_warnings():
        # Where nobody listens, the client drops its socket without closing it; collected here, so that
        # the warning is not laid at some later test's door. Not inside the except block: there the error's
        # traceback still holds the socket.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            # Connecting includes asking the engine for its version.
            docker.from_env(timeout=_DOCKER_TIMEOUT_S).close()
        except DockerException:
            answers = False
        gc.collect()
    return answers


@contextmanager
def _broker_in_docker() -> Iterator[_HasBootstrap]:
    from testcontainers.community.kafka import KafkaContainer

    with KafkaContainer(_IMAGE).with_kraft() as container:
        yield _Address(container.get_bootstrap_server())
