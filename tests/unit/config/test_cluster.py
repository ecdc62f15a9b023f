"""Settings of a node in a cluster, and the messages of refused ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig, QuorumConfig
from service.config.keys import to_text
from service.config.listeners import Address
from service.config.parsing import without_effect
from service.config.settings import BrokerConfig
from service.config.tables.cluster import CLUSTER, CLUSTER_TOPIC

ROOT = Path(__file__).parents[3]
THREE = "1@a:9093,2@b:9093,3@c:9093"
COMBINED = {
    "node.id": "2",
    "controller.quorum.voters": THREE,
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "2",
    "controller.quorum.bootstrap.servers": "a:9093,b:9093",
    "listeners": "CONTROLLER://b:9093",
    "controller.listener.names": "CONTROLLER",
}
BROKER = {
    "process.roles": "broker",
    "node.id": "11",
    "controller.quorum.bootstrap.servers": "a:9093,b:9093",
    "listeners": "PLAINTEXT://b:9092",
    "controller.listener.names": "CONTROLLER",
}
NEITHER = (
    "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap "
    "controllers or controller.quorum.voters must contain a parseable set of controllers."
)


def refused(base: Mapping[str, str], **changes: str | None) -> str:
    with pytest.raises(ConfigError) as raised:
        ClusterConfig.from_properties(changed(base, **changes))
    return str(raised.value)


def changed(base: Mapping[str, str], **changes: str | None) -> dict[str, str]:
    """`base` with other values: `__` stands for the dot, None takes a key away."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in {**base, **named}.items() if value is not None}


def test_without_a_file_a_node_is_alone_and_has_the_defaults_of_kafka() -> None:
    node = ClusterConfig.from_properties({})
    assert node.is_alone
    assert node.is_static_voter
    assert (node.is_broker, node.is_controller) == (True, True)
    assert (node.controller_listeners, node.controller_listener_names) == ((), ())
    assert node.inter_broker_listener_name == "PLAINTEXT"
    assert node.metadata_log_dir == node.log_dirs[0] == Path("firn-data")
    assert node.directories == (Path("firn-data"),)
    quorum = node.quorum
    assert (quorum.election_timeout_ms, quorum.fetch_timeout_ms, quorum.election_backoff_max_ms) == (
        1000,
        2000,
        1000,
    )
    assert (quorum.append_linger_ms, quorum.request_timeout_ms, quorum.retry_backoff_ms) == (0, 2000, 20)
    assert (quorum.fetch_max_bytes, quorum.fetch_snapshot_max_bytes) == (1 << 20, 1 << 20)
    assert (quorum.auto_join_enable, quorum.refused_election) == (False, True)
    assert (node.broker_heartbeat_interval_ms, node.broker_session_timeout_ms) == (2000, 9000)
    assert (node.initial_broker_registration_timeout_ms, node.broker_refused_fence_ms) == (60_000, 1000)
    assert (node.metadata_max_retention_bytes, node.metadata_max_retention_ms) == (100 << 20, 604_800_000)
    assert node.metadata_max_idle_interval_ms == 500
    assert node.controlled_shutdown_enable


def test_one_of_three_of_both_roles() -> None:
    node = ClusterConfig.from_properties(COMBINED).placed(Path("/srv"), "machine")
    assert not node.is_alone
    assert node.is_static_voter
    assert [voter.node_id for voter in node.quorum.voters] == [1, 2, 3]
    assert node.quorum.voters[2].address == Address("c", 9093)
    assert [str(one) for one in node.advertised_listeners] == ["PLAINTEXT://machine:9092"]
    assert [str(one) for one in node.controller_listeners] == ["CONTROLLER://:9093"]
    # what the configuration says of this voter is what it is reached by
    assert [str(one) for one in node.advertised_controller_listeners] == ["CONTROLLER://b:9093"]
    assert node.metadata_log_dir == Path("/srv/firn-data")


def test_a_pure_controller() -> None:
    node = ClusterConfig.from_properties(CONTROLLER)
    assert (node.is_broker, node.is_controller, node.is_static_voter) == (False, True, False)
    assert node.listeners == node.advertised_listeners == ()
    assert [str(one) for one in node.advertised_controller_listeners] == ["CONTROLLER://b:9093"]
    assert node.quorum.bootstrap_servers == (Address("a", 9093), Address("b", 9093))
    assert node.inter_broker_listener_name == ""


def test_a_pure_broker() -> None:
    node = ClusterConfig.from_properties(BROKER)
    assert (node.is_broker, node.is_controller, node.is_static_voter) == (True, False, False)
    assert node.controller_listener_names == ("CONTROLLER",)
    assert node.controller_listeners == node.advertised_controller_listeners == ()
    beside_voters = changed(BROKER, controller__quorum__bootstrap__servers=None)
    node = ClusterConfig.from_properties({**beside_voters, "controller.quorum.voters": THREE})
    assert len(node.quorum.voters) == 3


def test_controllers_are_told_of_as_the_configuration_says_and_in_its_order() -> None:
    node = ClusterConfig.from_properties(
        {
            **CONTROLLER,
            "listeners": "INNER://0.0.0.0:9094,OUTER://[::]:9093,THIRD://b:9095",
            "controller.listener.names": "OUTER,INNER,THIRD",
            "advertised.listeners": "INNER://inner.example:1",
            "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT,THIRD:PLAINTEXT",
        }
    )
    assert [str(one) for one in node.placed(Path("/"), "machine").advertised_controller_listeners] == [
        "OUTER://machine:9093",
        "INNER://inner.example:1",
        "THIRD://b:9095",
    ]


def test_the_metadata_log_has_a_directory_of_its_own_if_it_is_to() -> None:
    node = ClusterConfig.from_properties({"log.dirs": "/a,/b", "metadata.log.dir": "/m"})
    assert node.metadata_log_dir == Path("/m")
    assert node.directories == (Path("/a"), Path("/b"), Path("/m"))


def test_brokers_reach_each_other_by_the_listener_that_is_named() -> None:
    listeners = "PLAINTEXT://b:9092,INNER://b:9094"
    maps = "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
    both = changed(BROKER, listeners=listeners, listener__security__protocol__map=maps)
    assert ClusterConfig.from_properties(both).inter_broker_listener_name == "PLAINTEXT"
    named = {**both, "inter.broker.listener.name": "inner"}
    assert ClusterConfig.from_properties(named).inter_broker_listener_name == "INNER"


def test_a_node_that_is_alone_may_call_its_listener_as_it_likes() -> None:
    node = {"listeners": "INNER://a:1", "listener.security.protocol.map": "INNER:PLAINTEXT"}
    assert ClusterConfig.from_properties(node).inter_broker_listener_name == "INNER"
    alone = {"controller.quorum.voters": "1@localhost:9093"}
    assert ClusterConfig.from_properties(alone).is_alone


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (CONTROLLER, {"controller__quorum__bootstrap__servers": None}, NEITHER),
        (BROKER, {"controller__quorum__bootstrap__servers": None}, NEITHER),
        (
            COMBINED,
            {"node__id": "4"},
            "If process.roles contains the 'controller' role, the node id 4 must be included in the set of "
            "voters controller.quorum.voters={1,2,3}",
        ),
        (
            BROKER,
            {"node__id": "3", "controller__quorum__voters": THREE},
            "If process.roles contains just the 'broker' role, the node id 3 must not be included in the set "
            "of voters controller.quorum.voters={1,2,3}",
        ),
        (
            COMBINED,
            {"controller__quorum__voters": "2@a:9093,2@b:9093"},
            "controller.quorum.voters: node 2 is named twice",
        ),
        (
            COMBINED,
            {"controller__quorum__voters": "x@a:9093"},
            "Failed to parse voter ID as an integer from x",
        ),
        (
            COMBINED,
            {"controller__quorum__voters": "-1@a:9093"},
            "Failed to parse voter ID as an integer from -1",
        ),
        (
            COMBINED,
            {"controller__quorum__voters": "2@a:99999"},
            "Failed to parse host name from entry 2@a:99999 for the configuration controller.quorum.voters. "
            "Each entry should be in the form `{id}@{host}:{port}`.",
        ),
        (
            COMBINED,
            {"controller__quorum__voters": "1@a:1,2@0.0.0.0:9093"},
            "Host string (0.0.0.0) is not routeable",
        ),
        (
            BROKER,
            {"controller__quorum__bootstrap__servers": "a:9093,b"},
            "Failed to parse host name from b for the configuration controller.quorum.bootstrap.servers. "
            'Each entry should be in the form "{host}:{port}"',
        ),
        (
            COMBINED,
            {"controller__listener__names": None, "listeners": None},
            "controller.listener.names must contain at least one value appearing in the 'listeners' "
            "configuration when running the KRaft controller role",
        ),
        (
            COMBINED,
            {"controller__listener__names": "CONTROLLER,OTHER"},
            "controller.listener.names must only contain values appearing in the 'listeners' configuration "
            "when running the KRaft controller role; missing: OTHER",
        ),
        (
            COMBINED,
            {"controller__listener__names": "CONTROLLER,controller"},
            "Configuration 'controller.listener.names' values must not be duplicated.",
        ),
        (
            CONTROLLER,
            {"listeners": "CONTROLLER://b:9093,PLAINTEXT://b:9092"},
            "The listeners config must only contain KRaft controller listeners from controller.listener.names"
            " when process.roles=controller",
        ),
        (
            CONTROLLER,
            {"inter__broker__listener__name": "CONTROLLER"},
            "controller.listener.names must not contain an explicitly set inter.broker.listener.name "
            "configuration value when process.roles=controller",
        ),
        (
            BROKER,
            {"controller__listener__names": None},
            "controller.listener.names must contain at least one value when running KRaft with just the "
            "broker role",
        ),
        (
            BROKER,
            {"listeners": "PLAINTEXT://b:9092,CONTROLLER://b:9093"},
            "controller.listener.names must not contain a value appearing in the 'listeners' configuration "
            "when running KRaft with just the broker role",
        ),
        (
            BROKER,
            {"controller__quorum__auto__join__enable": "true"},
            "controller.quorum.auto.join.enable is only supported when process.roles contains the "
            "'controller' role.",
        ),
        (
            BROKER,
            {
                "inter__broker__listener__name": "INNER",
                "listener__security__protocol__map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INNER:SSL",
            },
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
            "options based on currently configured listeners are PLAINTEXT",
        ),
        (
            COMBINED,
            {"advertised__listeners": "PLAINTEXT://b:1,CONTROLLER://0.0.0.0:2"},
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. "
            "Use a routable IP address.",
        ),
        (
            COMBINED,
            {"listeners": "CONTROLLER://b:9093"},
            "There must be at least one broker advertised listener. Perhaps all listeners appear in "
            "controller.listener.names?",
        ),
        (
            COMBINED,
            {"process__roles": ""},
            "Configuration 'process.roles' must not be empty. Valid values include: broker, controller",
        ),
        (COMBINED, {"log__dirs": ""}, "At least one log directory must be defined via log.dirs or log.dir."),
        (
            COMBINED,
            {"controller__quorum__fetch__timeout__ms": "-1"},
            "Invalid value -1 for configuration controller.quorum.fetch.timeout.ms: Value must be at least 0",
        ),
        (
            COMBINED,
            {"controller__quorum__fetch__max__bytes": "0"},
            "Invalid value 0 for configuration controller.quorum.fetch.max.bytes: Value must be at least 1",
        ),
        (
            COMBINED,
            {"firn__broker__refused__fence__ms": "-2"},
            "Invalid value -2 for configuration firn.broker.refused.fence.ms: Value must be at least -1",
        ),
        (
            COMBINED,
            {"controller__quorum__voter": "1"},
            "controller.quorum.voter: unknown configuration key; did you mean 'controller.quorum.voters'?",
        ),
    ],
)
def test_impossible_cluster_settings_are_refused_in_kafkas_words(
    base: dict[str, str], changes: dict[str, str | None], message: str
) -> None:
    assert refused(base, **changes) == message


def test_a_broker_whose_map_forgets_the_controllers_is_told_so() -> None:
    assert "Controller listener with name CONTROLLER" in refused(
        BROKER, listener__security__protocol__map="PLAINTEXT:PLAINTEXT"
    )


def test_everything_wrong_is_reported_at_once() -> None:
    lines = refused(
        BROKER,
        controller__quorum__bootstrap__servers=None,
        controller__quorum__auto__join__enable="true",
        log__dirs="",
        listeners="CONTROLLER://b:9093",
    ).splitlines()
    assert len(lines) == 4


def test_doubtful_cluster_settings_are_accepted_with_a_warning() -> None:
    assert ClusterConfig.from_properties(COMBINED).complaints() == []
    slow = ClusterConfig.from_properties({**COMBINED, "broker.heartbeat.interval.ms": "5000"})
    assert "must be less than or equal to half" in slow.complaints()[0]
    two = ClusterConfig.from_properties({**BROKER, "controller.listener.names": "CONTROLLER,OTHER"})
    assert "only the first will be used" in two.complaints()[0]


def test_every_key_reaches_the_node() -> None:
    cluster = {field.name for field in dataclasses.fields(ClusterConfig)}
    quorum = {field.name for field in dataclasses.fields(QuorumConfig)}
    broker = {field.name for field in dataclasses.fields(BrokerConfig)}
    for key in (*CLUSTER, *CLUSTER_TOPIC):
        field = key.name.removeprefix("firn.").replace(".", "_")
        of_the_quorum = field.removeprefix("controller_").removeprefix("quorum_")
        if key.name != "security.inter.broker.protocol":  # names the listener
            assert field in cluster | broker or of_the_quorum in quorum, key.name
        assert key.doc.endswith("."), key.name


def test_keys_that_are_apache_kafkas_have_its_types_and_defaults() -> None:
    text = (ROOT / "tests" / "golden" / "config" / "broker_keys.txt").read_text()
    theirs = {name: (type_, default) for name, type_, default in (r.split(" ", 2) for r in text.splitlines())}
    ours = {
        key.name: (key.type.name.lower(), to_text(key.default) or "-") for key in (*CLUSTER, *CLUSTER_TOPIC)
    }
    assert {name for name in ours.keys() & theirs.keys() if theirs[name] != ours[name]} == {
        "controller.quorum.append.linger.ms",  # a flush under way gathers what comes meanwhile
        "process.roles",  # a node can be started without any settings
    }
    # the last one is internal there, and so not in its documentation
    assert sorted(ours.keys() - theirs.keys()) == [
        "firn.broker.refused.fence.ms",
        "firn.quorum.refused.election",
        "unclean.leader.election.interval.ms",
    ]


def test_apache_kafkas_default_of_every_key_is_taken() -> None:
    text = (ROOT / "tests" / "golden" / "config" / "broker_keys.txt").read_text()
    defaults = {
        name: "" if default == '""' else default
        for name, _, default in (row.split(" ", 2) for row in text.splitlines())
        if default != "-" and not name.endswith((".throttled.rate", "bytes.per.second"))  # never in a file
    }
    assert len(defaults) > 200
    for name, default in defaults.items():
        BrokerConfig.from_properties({"process.roles": "broker,controller", name: default})
    strict = {"firn.config.strict": "true"}
    given = {"num.io.threads": "8", "node.id": "1", "log.initial.task.delay.ms": "17"}
    assert {name: row.why for name, row in without_effect(given).items()} == {
        "num.io.threads": "a node is one event loop and small pools of threads; "
        "firn.processes uses more cores",
        "log.initial.task.delay.ms": "tasks begin at once after a start",
    }
    assert set(without_effect({**given, **strict})) == {"num.io.threads"}, "it is at Kafka's default"
    assert BrokerConfig.from_properties({"num.io.threads": "9"})
    with pytest.raises(ConfigError, match=r"num\.io\.threads: refused"):
        BrokerConfig.from_properties({"num.io.threads": "9", **strict})
    with pytest.raises(ConfigError, match=r"num\.io\.threads"):
        BrokerConfig.from_properties({}, dynamic={"num.io.threads": "8"})


def test_a_node_takes_the_keys_of_its_cluster() -> None:
    for properties in (COMBINED, CONTROLLER, BROKER):
        node = BrokerConfig.from_properties(properties)
        assert node.cluster.listeners == node.listeners
        assert node.cluster.is_member
        assert not node.cluster.is_alone
    alone = BrokerConfig.from_properties({})
    assert alone.cluster == ClusterConfig.from_properties({})
    assert alone.cluster.is_alone
    assert not alone.cluster.is_member
    joinable = BrokerConfig.from_properties(
        {"listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093", "controller.listener.names": "CONTROLLER"}
    )
    assert joinable.cluster.is_alone
    assert joinable.cluster.is_member
