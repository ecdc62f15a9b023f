"""Settings from a file, the command line and the environment: which counts, and how problems are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig
from service.config.environment import RESERVED, RESERVED_PREFIXES, key_variable, of_environment, variable_key
from service.config.explaining import explain
from service.config.given import GivenConfig, gather
from service.config.settings import BrokerConfig
from service.config.tables import BROKER_KEYS

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "tests" / "golden" / "config" / "shipped"
IGNORED = {
    "num.network.threads",
    "num.io.threads",
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "num.recovery.threads.per.data.dir",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
}


def given(text: str, folder: Path, *overrides: tuple[str, str], **environ: str) -> GivenConfig:
    path = folder / "server.properties"
    path.write_text(text)
    return gather(path, overrides, environ)


def problems(found: GivenConfig) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        found.checked(BrokerConfig.from_properties)
    return [re.sub(r"/\S*/", "", one) for one in raised.value.problems]


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("server", ("broker", "controller")),
        ("broker", ("broker",)),
        ("controller", ("controller",)),
    ],
)
def test_the_files_that_kafka_ships_are_taken_as_they_are(name: str, roles: tuple[str, ...]) -> None:
    found = gather(SHIPPED / f"{name}.properties", (), {})
    node = found.checked(BrokerConfig.from_properties)
    assert node.process_roles == roles == found.checked(ClusterConfig.from_properties).process_roles
    warnings = found.warnings()
    assert {one.split(": ")[1].split()[0] for one in warnings} == IGNORED
    assert len(warnings) == len(IGNORED), "one each"
    place = rf"{re.escape(str(SHIPPED))}/{name}\.properties:[0-9]+"
    for one in warnings:
        assert re.fullmatch(rf"{place}: [a-z.]+ has no effect here: .+", one)
    assert node.static["log.dirs"].startswith("/tmp/kraft-")


def test_everything_wrong_is_said_at_once_with_file_and_line_in_one_style(tmp_path: Path) -> None:
    text = (
        "# a node\nnode.id=seven\nlog.segmnt.bytes=1\n\nnum.io.threads=8\nlog.dirs=\\\n  /a,\\\n  /b\n"
        "ssl.provider=BC\nlistener.name.internal.ssl.provider=BC\nconfluent.tier.enable=true\nretention.ms=5\n"
    )
    assert problems(given(text, tmp_path, ("num.partitions", "0"), FIRN_LOG_ROLL_MS="soon")) == [
        "server.properties:2: node.id: invalid value 'seven': Not a number of type INT",
        "server.properties:3: log.segmnt.bytes: unknown configuration key; did you mean 'log.segment.bytes'?",
        "server.properties:9: ssl.provider: refused: TLS is OpenSSL's: there are no providers to choose "
        "among; take it out",
        "server.properties:10: listener.name.internal.ssl.provider: refused: TLS is OpenSSL's: there are no "
        "providers to choose among; take it out",
        "server.properties:11: confluent.tier.enable: refused: storage is built in; name the bucket by "
        "firn.remote.url, set remote.storage.enable on topics, take this key out",
        "server.properties:12: retention.ms: refused: a topic key; its default is set by log.retention.ms",
        "--set num.partitions: invalid value '0': Value must be at least 1",
        "FIRN_LOG_ROLL_MS: log.roll.ms: invalid value 'soon': Not a number of type LONG",
    ]


def test_keys_that_are_wrong_together_are_told_at_the_first_of_them(tmp_path: Path) -> None:
    text = "node.id=3\nfirn.disk.shrink.percent=79\ncontroller.quorum.voters=1@a:9093\nlisteners=SSL2://:1\n"
    assert problems(given(text, tmp_path)) == [
        "server.properties:2: firn.disk.shrink.percent: firn.disk.upload.percent (80) must not be more than "
        "firn.disk.shrink.percent (79)",
        "server.properties:3: controller.quorum.voters: If process.roles contains the 'controller' role, the "
        "node id 3 must be included in the set of voters controller.quorum.voters={1}",
        "server.properties:4: listeners: No security protocol defined for listener SSL2; "
        "listener.security.protocol.map has to name it, as in SSL2:SSL (of PLAINTEXT, SSL, SASL_PLAINTEXT, "
        "SASL_SSL)",
    ]
    assert problems(given("controller.quorum.voters=1@a:9093\nprocess.roles=\n", tmp_path)) == [
        "server.properties:2: process.roles: Configuration 'process.roles' must not be empty. Valid values "
        "include: broker, controller"
    ]


def test_values_that_would_forge_lines_or_fill_the_screen_are_shown_short(tmp_path: Path) -> None:
    text = "node.id=1\\n/etc/passwd:1: all is well\nnum.partitions=" + "9" * 5000 + "\nbad\\nkey=1\n"
    lines = problems(given(text, tmp_path))
    assert len(lines) == 3
    assert all("\n" not in line and len(line) < 250 for line in lines)
    assert lines[2] == "server.properties:3: bad\\nkey: unknown configuration key"


def test_a_line_that_cannot_be_read_and_a_value_that_is_not_there_have_their_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.properties:2: malformed .uxxxx encoding"):
        given("node.id=1\nbroker.rack=\\u12\n", tmp_path)
    with pytest.raises(ConfigError) as raised:
        given("node.id=${env:NODE}\nbroker.rack=${vault:a:b}\n", tmp_path)
    assert [re.sub(r"/\S*/", "", one) for one in raised.value.problems] == [
        "server.properties:1: node.id: ${env:NODE}: there is no such value",
        "server.properties:2: broker.rack: ${vault:a:b}: config.providers does not name 'vault'",
    ]


def test_the_command_line_counts_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    found = given(
        "log.dirs=/file\nnum.partitions=2\nnum.partitions=3\n",
        tmp_path,
        ("log.dirs", "/first"),
        ("log.dirs", "/last"),
        FIRN_LOG_DIRS="/environment",
        FIRN_NUM_PARTITIONS="3",
        FIRN_BROKER_RACK="r1",
        FIRN_REMOTE_URL="s3://bucket/prefix",
    )
    node = found.checked(BrokerConfig.from_properties)
    assert (str(node.log_dirs[0]), node.num_partitions, node.broker_rack) == ("/last", 3, "r1")
    assert node.remote_url == "s3://bucket/prefix"
    assert [re.sub(r"/\S*/", "", one) for one in found.warnings()] == [
        "server.properties:2: num.partitions: set again in line 3, which counts",
        "FIRN_LOG_DIRS: overruled by --set log.dirs",
    ]


def test_variables_that_are_no_settings_are_told_and_with_strict_refused(tmp_path: Path) -> None:
    environ = {
        "FIRN_PARTITIONS": "3",
        "FIRN_COLOUR": "blue",
        "FIRN_RACK": "r1",
        "FIRN_NUM_IO_THREADS": "8",
    }
    text = "broker.rack=${env:FIRN_RACK}\n"
    found = given(text, tmp_path, **environ)
    assert found.checked(BrokerConfig.from_properties).broker_rack == "r1"
    assert found.warnings() == [
        "FIRN_COLOUR: no setting has this environment variable",
        "FIRN_PARTITIONS: no setting has this environment variable; did you mean 'FIRN_NUM_PARTITIONS'?",
        "FIRN_NUM_IO_THREADS: num.io.threads has no effect here: a node is one event loop and small pools of "
        "threads; firn.processes uses more cores",
    ]
    environ["FIRN_CONFIG_STRICT"] = "true"
    environ["FIRN_NUM_IO_THREADS"] = "9"
    assert problems(given(text, tmp_path, **environ)) == [
        "FIRN_NUM_IO_THREADS: num.io.threads: refused: a node is one event loop and small pools of threads; "
        "firn.processes uses more cores",
        "FIRN_COLOUR: no setting has this environment variable",
        "FIRN_PARTITIONS: no setting has this environment variable; did you mean 'FIRN_NUM_PARTITIONS'?",
    ]


def test_a_variable_that_is_almost_a_setting_s_is_refused_as_a_slip_in_the_file_is(tmp_path: Path) -> None:
    found = given("node.id=1\n", tmp_path, FIRN_AUTHORIZER_CLAS_NAME="x", FIRN_NODE__ID="2")
    assert problems(found) == [
        "FIRN_AUTHORIZER_CLAS_NAME: no setting has this environment variable; did you mean "
        "'FIRN_AUTHORIZER_CLASS_NAME'?",
        "FIRN_NODE__ID: no setting has this environment variable; did you mean 'FIRN_NODE_ID'?",
    ]
    assert len(explain(found).problems) == 2
    text = "broker.rack=${env:FIRN_NODE_IDS}\n"  # whoever names it means it
    assert given(text, tmp_path, FIRN_NODE_IDS="r1").checked(BrokerConfig.from_properties).broker_rack == "r1"


def test_a_variable_that_a_value_names_is_still_the_setting_that_it_is(tmp_path: Path) -> None:
    text = "advertised.listeners=PLAINTEXT://node-${env:FIRN_NODE_ID}:9092\nbroker.rack=${env:FIRN_BROKER_RACK}\n"
    found = given(text, tmp_path, FIRN_NODE_ID="3", FIRN_BROKER_RACK="r1", FIRN_CONFLUENT_X="1")
    node = found.checked(BrokerConfig.from_properties)
    assert (node.node_id, node.broker_rack, str(node.advertised_listeners[0])) == (
        3,
        "r1",
        "PLAINTEXT://node-3:9092",
    )
    (warning,) = found.warnings()
    assert warning.startswith("FIRN_CONFLUENT_X: confluent.x has no effect here")
    # one of another product's name, which the file alone uses
    found = given("broker.rack=${env:FIRN_CONFLUENT_X}\n", tmp_path, FIRN_CONFLUENT_X="r2")
    assert (found.checked(BrokerConfig.from_properties).broker_rack, found.warnings()) == ("r2", [])


def test_variables_of_commands_tests_and_containers_are_no_settings() -> None:
    environ = {
        "FIRN_BOOTSTRAP": "a:9092",
        "FIRN_COMMAND_CONFIG": "/c",
        "FIRN_PROFILE": "p",
        "FIRN_URL": "s3://b",
        "FIRN_TEST_DEV": "3",
        "FIRN_SPARK_CONNECTOR": "x",
        "FIRN_PORT": "tcp://10.0.0.1:9092",
        "FIRN_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "FIRN_PORT_9092_TCP_ADDR": "10.0.0.1",
        "FIRN_SERVICE_HOST": "10.0.0.1",
        "FIRN_SERVICE_PORT_KAFKA": "9092",
        "FIRN_CONSOLE_SERVICE_PORT": "8080",
        "KAFKA_LOG_DIRS": "/x",
    }
    assert of_environment(environ, ()) == ({}, {}, (), ())


def test_each_variable_that_the_program_reads_is_reserved() -> None:
    read = set()
    for path in (ROOT / "service").rglob("*.py"):
        if path.name not in ("environment.py", "docs.py", "from_kafka.py"):
            read |= set(re.findall(r"\bFIRN_[A-Z][A-Z_]+\b", path.read_text("utf-8")))
    assert {one for one in read if one not in RESERVED and not one.startswith(RESERVED_PREFIXES)} == set()


def test_every_key_has_a_variable_and_the_way_back() -> None:
    names = [
        *BROKER_KEYS,
        "listener.name.my-listener.ssl.client.auth",
        "listener.name.my_listener.scram-sha-512.sasl.jaas.config",
        "config.providers.env.class",
        "zookeeper.connect",
    ]
    assert {name: variable_key(key_variable(name)) for name in names} == {name: name for name in names}
    assert variable_key("FIRN_FIRN_REMOTE_URL") == "firn.remote.url"
    assert not {"firn." + name for name in BROKER_KEYS} & set(BROKER_KEYS), "one variable, one key"
    assert not {variable for variable in map(key_variable, BROKER_KEYS) if variable in RESERVED}


def test_two_variables_of_one_key_are_told() -> None:
    found = of_environment({"FIRN_FIRN_REMOTE_URL": "s3://a", "FIRN_REMOTE_URL": "s3://b"}, ())
    assert found.properties == {"firn.remote.url": "s3://a"}
    assert found.unknown == ("FIRN_REMOTE_URL: the same setting as FIRN_FIRN_REMOTE_URL, which counts",)


def test_values_of_variables_are_in_no_text(tmp_path: Path) -> None:
    text = (
        "node.id=${env:PW}\nlog.cleanup.policy=delete,${env:PW}\nlisteners=${env:PW}\nbroker.rack=${env:PW}\n"
        "firn.config.strict=${env:SHORT}\n"
    )
    found = given(text, tmp_path, PW="geheim", SHORT="7")
    assert problems(found) == [
        "server.properties:1: node.id: invalid value '${env:PW}': Not a number of type INT",
        "server.properties:2: log.cleanup.policy: invalid value '${env:PW}': String must be one of: compact, "
        "delete",
        "server.properties:5: firn.config.strict: invalid value '${env:SHORT}': Expected value to be either "
        "true or false",
    ]
    explained = explain(found)
    assert "geheim" not in repr(explained)
    assert {one.key: one.value for one in explained.keys}["broker.rack"] == "${env:PW}"
    found = given("listeners=${env:PW}\nbroker.rack=${env:RACK}\n", tmp_path, PW="geheim", RACK="r1")
    assert len(problems(found)) == 1
    assert "geheim" not in problems(found)[0]
