"""Topics and clusters from YAML: a pipeline without Python, and patterns that are asked once and remembered."""

# Annotations are values here: Dagster reads them of a component.

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from confluent_kafka import Producer
from dagster.components.testing.utils import DefsFolderSandbox

from kafka_ordered_ops import BrokerUnreachableError, ConfigError, UnknownTopicError
from kafka_ordered_ops.dagster import KafkaResource, KafkaResourceComponent, KafkaTopicsComponent
from kafka_ordered_ops.dagster.components import topics_component
from tests.conftest import MakeTopic
from tests.support.dagster_support import KEYS, House, expected
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.dagster_yaml import READS_YAML, run_dg
from tests.support.dagster_yaml import sandbox as sandbox

pytestmark = [pytest.mark.timeout(300), *READS_YAML]

TYPES: Final = "kafka_ordered_ops.dagster"
#: Nobody listens there.
AWAY: Final = "127.0.0.1:9"


def write(sandbox: DefsFolderSandbox, name: str, kind: str, **attributes: Any) -> Path:
    """A file of the project."""
    folder = sandbox.defs_folder_path / name
    folder.mkdir(exist_ok=True)
    body = {"type": f"{TYPES}.{kind}", "attributes": attributes}
    (folder / "defs.yaml").write_text(json.dumps(body))
    return folder


def write_cluster(sandbox: DefsFolderSandbox, **more: Any) -> None:
    """A file that names the cluster, by a variable of the environment."""
    config = {"bootstrap.servers": "{{ env.YAML_BROKER }}"}
    write(sandbox, "kafka", "KafkaResourceComponent", config=config, **more)


def assets_of(defs: dg.Definitions) -> dict[str, dg.AssetsDefinition]:
    """All assets, by key."""
    return {
        key.to_user_string(): one
        for one in defs.assets or []
        if isinstance(one, dg.AssetsDefinition)
        for key in one.keys
    }


def keys_in(sandbox: DefsFolderSandbox) -> set[str]:
    """The keys of the assets that a project's definitions have now."""
    with sandbox.build_all_defs() as defs:
        return set(assets_of(defs))


def refresh(sandbox: DefsFolderSandbox) -> None:
    """What ``dg utils refresh-defs-state`` does."""
    with sandbox.build_component_tree() as tree:
        for one in tree.get_all_components(of_type=KafkaTopicsComponent):
            asyncio.run(one.refresh_state(sandbox.project_root))


def run(
    house: House, defs: dg.Definitions, selection: Sequence[str], **more: Any
) -> dg.ExecuteInProcessResult:
    """A run of some assets of a project, with the project's own resources."""
    job = dg.define_asset_job("some", [dg.AssetKey.from_user_string(one) for one in selection])
    whole = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("some")
    return whole.execute_in_process(instance=house.instance, **more)


# --- a project -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipeline_without_python(
    house: House,
    hours: str,
    group_id: str,
    sandbox: DefsFolderSandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster, a topic and its windows are three files, that hang together by name and by key."""
    monkeypatch.delenv("YAML_BROKER", raising=False)
    write_cluster(sandbox)
    write(sandbox, "topics", "KafkaTopicsComponent", topics=[hours], topic_key_prefix="cluster/a")
    window = {
        "key": "lake/orders",
        "window": {"topics": [hours], "starting_offsets": "earliest"},
        "group_id": group_id,
    }
    partitions = {"type": "hourly", "start_date": "2026-01-05-00:00"}
    write(
        sandbox,
        "orders",
        "OrderedWindowComponent",
        **window,
        partitions=partitions,
        output=str(house.output),
        topic_key_prefix="cluster/a",
    )
    topic = f"cluster/a/{hours}"
    with sandbox.build_all_defs() as defs:
        assets = assets_of(defs)
        assert set(assets) == {topic, "lake/orders"}
        assert set(defs.resources or {}) == {"kafka"}
        [upstream] = [dep.asset_key for spec in assets["lake/orders"].specs for dep in spec.deps]
        assert {upstream} == assets[topic].keys
        monkeypatch.setenv("YAML_BROKER", house.bootstrap)
        run(house, defs, [topic])
        run(house, defs, ["lake/orders"], partition_key=KEYS[1])
    [seen] = house.instance.fetch_observations(dg.AssetRecordsFilter(upstream), limit=9).records
    assert seen.asset_observation is not None
    assert seen.asset_observation.metadata["kafka_ordered_ops/offsets"].value == 25
    wanted = dg.AssetRecordsFilter(dg.AssetKey(["lake", "orders"]))
    [made] = house.instance.fetch_materializations(wanted, limit=9).records
    assert made.asset_materialization is not None
    where = made.asset_materialization.metadata["dagster/uri"].value
    assert house.offsets(str(where)) == expected(1)


# --- patterns --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_pattern_means_is_asked_once_and_remembered(
    sandbox: DefsFolderSandbox,
    topic: MakeTopic,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither internal topics, nor a ledger of one's own, nor what is excluded; loading asks nobody."""
    stem = topic()
    for name in ("old", "a", "plans"):
        topic(f"{stem}.{name}")
    topic(f"__{stem}")
    write_cluster(sandbox, ledger_topic=f"{stem}.plans")
    pattern = f"^(__)?{stem}.*"
    given = {"topics": ["named", pattern], "exclude": [f"{stem}.old"]}
    write(sandbox, "topics", "KafkaTopicsComponent", **given)
    monkeypatch.setenv("YAML_BROKER", bootstrap)
    assert keys_in(sandbox) == {"kafka/named"}
    refresh(sandbox)
    monkeypatch.setenv("YAML_BROKER", AWAY)
    monkeypatch.setattr(topics_component, "DISCOVERY_TIMEOUT_S", 1)
    found = {"kafka/named", f"kafka/{stem}", f"kafka/{stem}.a"}
    assert keys_in(sandbox) == found
    topic(f"{stem}.b")
    with pytest.raises(BrokerUnreachableError):
        refresh(sandbox)
    assert keys_in(sandbox) == found
    monkeypatch.setenv("YAML_BROKER", bootstrap)
    refresh(sandbox)
    assert keys_in(sandbox) == {*found, f"kafka/{stem}.b"}


@pytest.mark.slow
def test_while_a_project_is_developed_each_load_asks(
    sandbox: DefsFolderSandbox,
    topic: MakeTopic,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with ``dg dev``; and is told what was known before when nobody answers, or nothing matches any more."""
    monkeypatch.setattr(topics_component, "DISCOVERY_TIMEOUT_S", 1)
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    stem = topic()
    kafka = {"config": {"bootstrap.servers": "{{ env.YAML_BROKER }}"}}
    write(sandbox, "topics", "KafkaTopicsComponent", topics=[f"^{stem}.*"], kafka=kafka)
    monkeypatch.delenv("YAML_BROKER", raising=False)
    assert keys_in(sandbox) == set()
    assert "YAML_BROKER is not set" in caplog.text
    assert "never requested" in caplog.text
    monkeypatch.setenv("YAML_BROKER", bootstrap)
    assert keys_in(sandbox) == {f"kafka/{stem}"}
    topic(f"{stem}.b")
    both = {f"kafka/{stem}", f"kafka/{stem}.b"}
    assert keys_in(sandbox) == both
    monkeypatch.setenv("YAML_BROKER", AWAY)
    caplog.clear()
    assert keys_in(sandbox) == both
    assert f"match ^{stem}.* could not be requested" in caplog.text


@pytest.mark.slow
def test_names_ask_nobody(sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while a project is developed, nor when states are refreshed: no cluster need be known at all."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    write(sandbox, "topics", "KafkaTopicsComponent", topics=["b", "a"], exclude=["b"])
    assert keys_in(sandbox) == {"kafka/a"}
    assert not list(sandbox.defs_folder_path.glob(".local_defs_state/*"))
    refresh(sandbox)
    assert keys_in(sandbox) == {"kafka/a"}


def test_a_pattern_without_a_topic_is_no_answer(
    sandbox: DefsFolderSandbox, bootstrap: str, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights may be missing: what was known before stays."""
    stem = topic()
    kafka = {"config": {"bootstrap.servers": bootstrap}}
    given = {"topics": [f"^{stem}.*"], "kafka": kafka}
    write(sandbox, "topics", "KafkaTopicsComponent", **given)
    refresh(sandbox)
    [state] = sandbox.defs_folder_path.glob(".local_defs_state/*/state")
    before = state.read_bytes()
    write(sandbox, "topics", "KafkaTopicsComponent", topics=["^never-made-.*"], kafka=kafka)
    with pytest.raises(UnknownTopicError, match="never-made"):
        refresh(sandbox)
    assert state.read_bytes() == before
    write(sandbox, "topics", "KafkaTopicsComponent", **given)
    assert keys_in(sandbox) == {f"kafka/{stem}"}


def test_a_cluster_that_only_python_knows_cannot_be_asked(sandbox: DefsFolderSandbox) -> None:
    """Before a run there are no resources; what to do is told."""
    write(sandbox, "topics", "KafkaTopicsComponent", topics=["^a.*"], kafka_resource="other")
    write_cluster(sandbox)
    with pytest.raises(ConfigError, match="'other' with a KafkaResourceComponent"):
        refresh(sandbox)


def test_each_question_has_a_state_and_an_op_of_its_own() -> None:
    """Another cluster, or another pattern, is another question; what is found is not."""
    given: dict[str, Any] = {"topics": ["^a.*"]}
    more: list[dict[str, Any]] = [
        {},
        {"topics": ["^b.*"]},
        {"exclude": ["ab"]},
        {"topic_key_prefix": "there"},
        {"kafka": {"config": {"bootstrap.servers": "there:9092"}}},
        {"kafka": {"config": {"bootstrap.servers": "{{ env.THERE }}"}}},
    ]
    made = [KafkaTopicsComponent.resolve_from_dict({**given, **one}) for one in more]
    assert len({one.defs_state_config.key for one in made}) == len(made)
    fixed = {"key": "mine", "management_type": "VERSIONED_STATE_STORAGE"}
    own = KafkaTopicsComponent.resolve_from_dict({**given, "defs_state": fixed})
    assert own.defs_state_config.key == "mine"


# --- what a file says ------------------------------------------------------------------------------


def component(**attributes: Any) -> KafkaTopicsComponent:
    """A component from YAML."""
    made = KafkaTopicsComponent.resolve_from_yaml(json.dumps(attributes))
    assert isinstance(made, KafkaTopicsComponent)
    return made


def test_what_topics_as_assets_can_be_told() -> None:
    """When to look, a group, the op's name, a cluster of the file's own."""
    made = component(
        topics=["a", "b"],
        automation_condition="{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}",
        group_name="topics",
        name="look",
        kafka={"config": {"bootstrap.servers": "localhost:9092"}},
    )
    defs = dg.component_defs(component=made)
    [asset] = set(assets_of(defs).values())
    assert asset.op.name == "look"
    for spec in asset.specs:
        assert spec.group_name == "topics"
        assert spec.automation_condition == dg.AutomationCondition.on_cron("*/5 * * * *")
    [resource] = defs.resources or {}
    assert resource in asset.required_resource_keys
    plain = component(topics=["a"])
    assert (plain.automation_condition, plain.name, plain.kafka_resource) == (None, None, "kafka")


@dataclass(kw_only=True)
class Owned(KafkaTopicsComponent):
    """A component of somebody's own, with a field of its own."""

    owner: str

    def topic_key(self, topic: str) -> dg.AssetKey:
        """In capitals."""
        return super().topic_key(topic.upper())

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """With an owner."""
        return spec.replace_attributes(owners=[self.owner])


def test_a_component_of_ones_own(house: House, topic: MakeTopic) -> None:
    """It says what the assets look like, and they are observed all the same."""
    name = topic()
    made = Owned.resolve_from_dict({"topics": [name], "owner": "team:lake"})
    defs = dg.component_defs(component=made, resources={"kafka": house.kafka})
    key = f"kafka/{name.upper()}"
    assert assets_of(defs)[key].get_asset_spec().owners == ["team:lake"]
    assert run(house, defs, [key]).success


def test_what_counts_can_be_told(house: House, topic: MakeTopic) -> None:
    """What an open transaction has written is there for those who read it."""
    name = topic()
    producer = Producer({"bootstrap.servers": house.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"x")
    producer.flush(30)
    for isolation, offsets in (("read_uncommitted", 1), ("read_committed", 0)):
        made = component(topics=[name], isolation=isolation)
        defs = dg.component_defs(component=made, resources={"kafka": house.kafka})
        run(house, defs, [f"kafka/{name}"])
        wanted = dg.AssetRecordsFilter(dg.AssetKey(["kafka", name]))
        [newest] = house.instance.fetch_observations(wanted, limit=1).records
        assert newest.asset_observation is not None
        assert newest.asset_observation.metadata["kafka_ordered_ops/offsets"].value == offsets
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topics": []}, "at least one"),
        ({"topics": ["a b"]}, "a b"),
        ({"topics": ["a"], "exclude": ["^a.*"]}, "every topic is excluded"),
        (
            {"topics": ["a"], "automation_condition": "soon"},
            "'soon' is not an automation condition",
        ),
        ({"topic": ["a"]}, "topic"),
        ({"topics": "a"}, "topics"),
        ({"topics": ["a"], "isolation": "some"}, "read_committed"),
    ],
)
def test_what_cannot_be(wrong: dict[str, Any], told: str) -> None:
    """Is named when the file is loaded."""
    with pytest.raises(Exception, match=rf"(?s){told}"):
        dg.component_defs(component=component(**wrong))


def test_what_is_no_pattern_is_named(sandbox: DefsFolderSandbox) -> None:
    """When the file is loaded, too: nobody need be asked for that."""
    folder = write(sandbox, "topics", "KafkaTopicsComponent", topics=["^a("])
    with sandbox.build_component_tree() as tree:
        made = tree.load_component(folder, KafkaTopicsComponent)
        with pytest.raises(ConfigError, match=r"'\^a\(' is not a regular expression"):
            made.build_defs(tree.load_context)


@pytest.mark.parametrize("text", ["", "[]", '{"topic":[]}', '{"topics":1}'])
def test_a_state_of_somebody_else_is_named(text: str, tmp_path: Path) -> None:
    """And not taken for no topics."""
    state = tmp_path / "state"
    state.write_text(text)
    made = component(topics=["^a.*"])
    with pytest.raises(ConfigError, match="refresh-defs-state"):
        made.build_defs_from_state(dg.ComponentTree.for_test().load_context, state)


# --- a cluster -------------------------------------------------------------------------------------


def test_a_cluster_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords stay in the environment; what is text is text, and booleans are librdkafka's."""
    monkeypatch.setenv("YAML_PASSWORD", "hunter2")
    given = {
        "name": "kafka_eu",
        "config": {
            "bootstrap.servers": "eu:9092",
            "sasl.password": "{{ env.YAML_PASSWORD }}",
            "socket.keepalive.enable": True,
            "socket.timeout.ms": 9000,
        },
        "settings_allowed": ["socket.keepalive.enable"],
        "ledger_topic": "plans",
    }
    made = KafkaResourceComponent.resolve_from_yaml(json.dumps(given))
    assert "hunter2" not in repr(made)
    assert "eu:9092" not in repr(made)
    [(name, resource)] = (dg.component_defs(component=made).resources or {}).items()
    assert name == "kafka_eu"
    assert isinstance(resource, KafkaResource)
    assert resource.config["sasl.password"] == dg.EnvVar("YAML_PASSWORD")
    ready = resource.process_config_and_initialize()
    assert ready.config == {
        "bootstrap.servers": "eu:9092",
        "sasl.password": "hunter2",
        "socket.keepalive.enable": "true",
        "socket.timeout.ms": "9000",
    }
    assert (ready.settings_allowed, ready.ledger_topic) == (["socket.keepalive.enable"], "plans")


# --- Dagster's command line ------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_line_knows_them(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """They are scaffolded, and load with no variable set and no broker; a wrong field is named with its line."""
    told = run_dg(sandbox.project_root, tmp_path, "list", "components")
    for name in ("KafkaTopicsComponent", "KafkaResourceComponent"):
        assert f"{TYPES}.{name}" in told
        run_dg(sandbox.project_root, tmp_path, "scaffold", "defs", f"{TYPES}.{name}", name.lower())
    file = sandbox.defs_folder_path / "kafkatopicscomponent" / "defs.yaml"
    assert "kafkatopicscomponent" in file.read_text()
    with sandbox.build_all_defs() as defs:
        assert set(assets_of(defs)) == {"kafka/kafkatopicscomponent"}
        assert set(defs.resources or {}) == {"kafka"}
    file.write_text(file.read_text().replace("topics:", "topic:"))
    told = run_dg(sandbox.project_root, tmp_path, "check", "yaml", fails=True)
    assert "defs.yaml:4" in told
    assert "'topic' was unexpected" in told
