"""Topics as assets: a new version for new records and for nothing else, and upstream of their windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import BrokerUnreachableError, ConfigError, UnknownTopicError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster import (
    KafkaResource,
    KafkaWindowTranslator,
    build_kafka_topic_assets,
)
from kafka_ordered_ops.windows import ClientSettings
from kafka_ordered_ops.windows.queries.topics import PartitionEnds, topic_ends
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import House, copied, failure_of
from tests.support.dagster_support import house as house
from tests.support.windows_support import BASE_MS, delete_before, wait_until_gone

pytestmark = pytest.mark.timeout(300)


def observed(
    house: House,
    assets: dg.AssetsDefinition,
    topics: Sequence[dg.AssetKey] = (),
    *,
    fails: bool = False,
) -> dg.ExecuteInProcessResult:
    """Looks at some topics, or at all that there are."""
    definitions = dg.Definitions(
        assets=[assets],
        jobs=[dg.define_asset_job("look", topics or [*assets.keys])],
        resources={"kafka": house.kafka},
    )
    job = definitions.resolve_job_def("look")
    result = job.execute_in_process(instance=house.instance, raise_on_error=False)
    assert result.success is not fails
    return result


def told(house: House, topic: str) -> dg.AssetObservation:
    """What was observed of a topic last."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey(["kafka", topic]))
    [record] = house.instance.fetch_observations(wanted, limit=1).records
    assert record.asset_observation is not None
    return record.asset_observation


def versions(house: House, assets: dg.AssetsDefinition, *topics: str) -> list[str]:
    """The data versions that a look finds."""
    observed(house, assets)
    return [told(house, topic).tags["dagster/data_version"] for topic in topics]


def rows(event: dg.AssetObservation) -> Sequence[Mapping[str, Any]]:
    """The table of partitions."""
    table = event.metadata["kafka_ordered_ops/ends"]
    assert isinstance(table, dg.TableMetadataValue)
    return [row.data for row in table.records]


def write(produce: Produce, topic: str, partition: int = 0, count: int = 1) -> None:
    """Some records."""
    produce((topic, partition, None, b"x", BASE_MS + n, ()) for n in range(count))


@pytest.mark.slow
def test_a_new_version_for_new_records_and_for_nothing_else(
    house: House, topic: MakeTopic, produce: Produce, bootstrap: str
) -> None:
    """Not for another look, and not for what retention takes; of several topics only that which has them."""
    first, second = topic(partitions=2), topic()
    assets = build_kafka_topic_assets([first, second])
    write(produce, first, count=3)
    begun = versions(house, assets, first, second)
    delete_before(bootstrap, first, 2)
    assert versions(house, assets, first, second) == begun
    write(produce, first, partition=1)
    after = versions(house, assets, first, second)
    assert after[0] != begun[0]
    assert after[1] == begun[1] != begun[0]
    event = told(house, first)
    assert rows(event) == [
        {"partition": 0, "log_start": 2, "end_offset": 3, "offsets": 1},
        {"partition": 1, "log_start": 0, "end_offset": 1, "offsets": 1},
    ]
    assert event.metadata["kafka_ordered_ops/offsets"].value == 2


def test_a_topic_that_is_made_anew_has_another_version(
    house: House, topic: MakeTopic, produce: Produce, bootstrap: str
) -> None:
    """With the same name and the same offsets: its records are others."""
    name = topic()
    assets = build_kafka_topic_assets([name])
    write(produce, name)
    begun = versions(house, assets, name)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(30)
    wait_until_gone(bootstrap, name)
    topic(name)
    write(produce, name)
    assert versions(house, assets, name) != begun


def test_an_open_transaction_counts_when_it_is_committed(
    house: House, topic: MakeTopic, bootstrap: str
) -> None:
    """Until then its records can be read by nobody who reads committed ones."""
    name = topic()
    assets = build_kafka_topic_assets([name])
    begun = versions(house, assets, name)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"x")
    producer.flush(30)
    assert versions(house, assets, name) == begun
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    found = topic_ends(settings, [name], isolation=Isolation.READ_UNCOMMITTED)
    assert found[name].partitions == (PartitionEnds(0, 0, 1),)
    producer.commit_transaction(30)
    assert versions(house, assets, name) != begun


def test_topics_are_upstream_of_their_windows(house: House, group_id: str) -> None:
    """By the translator's keys, the same for both."""

    class Prefixed(KafkaWindowTranslator):
        def topic_key(self, topic: str) -> dg.AssetKey:
            return dg.AssetKey(["cluster-1", topic])

    for translator in (KafkaWindowTranslator(), Prefixed()):
        windows = copied(house, "orders.v1-eu", group_id, translator=translator)
        topics = build_kafka_topic_assets(["orders.v1-eu"], translator=translator)
        [upstream] = [dep.asset_key for spec in windows.specs for dep in spec.deps]
        assert [upstream] == list(topics.keys)
        dg.Definitions(assets=[windows, topics], resources={"kafka": house.kafka})


def test_automation_fires_for_new_records_and_for_nothing_else(
    house: House, topic: MakeTopic, produce: Produce
) -> None:
    """Another look at the same ends is no update."""
    name = topic()
    topics = build_kafka_topic_assets([name])

    @dg.asset(
        deps=list(topics.keys), automation_condition=dg.AutomationCondition.any_deps_updated()
    )
    def report() -> None:
        """Of whatever has come."""

    definitions = dg.Definitions(assets=[topics, report], resources={"kafka": house.kafka})
    cursor = None
    # What is there when it is evaluated for the first time is no update.
    for has_more in (False, True, False, True):
        if has_more:
            write(produce, name)
        observed(house, topics)
        found = dg.evaluate_automation_conditions(
            definitions,
            instance=house.instance,
            asset_selection=dg.AssetSelection.assets("report"),
            cursor=cursor,
        )
        cursor = found.cursor
        assert found.total_requested == has_more


def test_one_topic_of_several_can_be_looked_at(house: House, topic: MakeTopic) -> None:
    """The others may not even be there."""
    name = topic()
    assets = build_kafka_topic_assets(["not-there", name])
    observed(house, assets, [dg.AssetKey(["kafka", name])])
    assert len(rows(told(house, name))) == 1
    assert "UnknownTopicError" in failure_of(observed(house, assets, fails=True))


def test_a_broker_that_is_away_is_an_error() -> None:
    """Within the time that it is given."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:9"})
    with pytest.raises(BrokerUnreachableError):
        topic_ends(settings, ["orders"], timeout_s=1)


def test_a_topic_that_does_not_exist_is_named(bootstrap: str) -> None:
    """And is not created by asking."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    for _ in range(2):
        with pytest.raises(UnknownTopicError, match="never-made"):
            topic_ends(settings, ["never-made"])


@pytest.mark.parametrize(
    ("topics", "named"),
    [([], "at least one"), ("orders", "list"), (["^a.*"], r"\^a"), (["a b"], "a b")],
)
def test_what_is_no_topic_is_named_when_the_assets_are_built(topics: Any, named: str) -> None:
    """A pattern, say: which topics it means is not known before a cluster is asked."""
    with pytest.raises(ConfigError, match=named):
        build_kafka_topic_assets(topics)


def test_what_is_no_isolation_is_named_when_the_assets_are_built() -> None:
    """With those that there are."""
    with pytest.raises(
        ConfigError, match="'none': give one of 'read_committed', 'read_uncommitted'"
    ):
        build_kafka_topic_assets(["orders"], isolation="none")


def test_two_sets_of_topics_have_two_ops() -> None:
    """Though both begin with the same name."""
    both = [build_kafka_topic_assets(["a.b"]), build_kafka_topic_assets(["a.b-c", "d"])]
    assert len({one.op.name for one in both}) == 2
    dg.Definitions(assets=both, resources={"kafka": KafkaResource(config={})})
