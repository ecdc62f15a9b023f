"""Settings of a node: defaults, dynamic changes, listeners, and messages of refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config import from_kafka
from service.config.cluster import ClusterConfig, QuorumConfig
from service.config.docs import markdown
from service.config.keys import LONG_MAX, ConfigType, to_text
from service.config.parsing import parse_value
from service.config.protocols import SecurityProtocol
from service.config.quotas import QuotaConfig
from service.config.replication import ReplicationConfig
from service.config.security import NodeSecurity, TlsSettings
from service.config.settings import BrokerConfig, LogConfig, topic_config
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from service.config.tables.cluster import CLUSTER_TOPIC
from service.config.tables.groups import GROUPS, OFFSETS_TOPIC
from service.config.tables.transactions import TRANSACTIONS
from service.config.tokens import TokenConfig
from tests.unit.config.refusals import PLAIN, refused

ROOT = Path(__file__).parents[3]
OBJECTS = (
    BrokerConfig,
    ClusterConfig,
    QuorumConfig,
    ReplicationConfig,
    QuotaConfig,
    TokenConfig,
    NodeSecurity,
    TlsSettings,
)


def test_without_a_file_it_is_one_node_on_the_loopback_interface() -> None:
    assert [str(listener) for listener in PLAIN.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert PLAIN.advertised_listeners == PLAIN.listeners
    assert PLAIN.log_dirs == (Path("firn-data"),)
    assert PLAIN.placed(Path("/srv"), "here").log_dirs == (Path("/srv/firn-data"),)
    assert (PLAIN.node_id, PLAIN.process_roles) == (1, ("broker", "controller"))
    assert not PLAIN.remote_storage_enabled


def test_a_topic_without_overrides_has_the_defaults_of_kafka() -> None:
    assert topic_config({}, PLAIN) == PLAIN.log == LogConfig()


def test_the_default_of_every_key_is_valid_and_reads_back() -> None:
    for key in (*TOPIC_KEYS.values(), *BROKER_KEYS.values()):
        text = to_text(key.default)
        if text is not None:
            assert parse_value(key, text) == key.default, key.name
        assert key.doc.endswith("."), key.name


def test_every_setting_of_a_topic_is_a_key_and_the_other_way_round() -> None:
    fields = {field.name for field in dataclasses.fields(LogConfig)}
    keys = {*TOPIC_KEYS, *(key.name for key in CLUSTER_TOPIC)}
    names = {name.removeprefix("firn.").replace(".", "_") for name in keys}
    assert fields == names - {"internal_segment_bytes", "preallocate"}
    assert (
        parse_value(TOPIC_KEYS["preallocate"], "false") is False
    )  # the only value, so that no log has to know it
    with pytest.raises(ConfigError, match="segments grow as they are written"):
        parse_value(TOPIC_KEYS["preallocate"], "true")
    for name, key in TOPIC_KEYS.items():
        for synonym in key.synonyms:
            assert synonym.name in BROKER_KEYS, name


def test_every_key_of_a_node_reaches_it() -> None:
    """A key that no field and no topic default comes from would be accepted and ignored."""
    fields = {field.name for config in OBJECTS for field in dataclasses.fields(config)}
    of_topics = {synonym.name for key in TOPIC_KEYS.values() for synonym in key.synonyms}
    of_groups = {key.name for key in (*OFFSETS_TOPIC, *GROUPS, *TRANSACTIONS)}
    read_otherwise = {
        "log.dir",
        "config.providers",
        "firn.config.strict",
        "broker.id",
        "listener.security.protocol.map",
        "security.inter.broker.protocol",
        "connections.max.reauth.ms",
        "ssl.endpoint.identification.algorithm",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls",
        "firn.processes",  # by whoever starts nodes: test_processes.py
        "firn.processes.id.step",
        "firn.processes.port.step",
    }
    for name in BROKER_KEYS:
        if name.startswith("sasl.") or name in read_otherwise:  # test_security.py
            continue
        field = name.removeprefix("controller.quorum.").removeprefix("firn.").removeprefix("quorum.")
        field = field.removeprefix("replica.").removeprefix("ssl.").removeprefix("connection.")
        field = field.removeprefix("delegation.token.")
        assert field.replace(".", "_") in fields or name in {*of_topics, *of_groups}, name


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"log.segmnt.bytes": "1"},
            "log.segmnt.bytes: unknown configuration key; did you mean 'log.segment.bytes'?",
        ),
        ({"colour": "blue"}, "colour: unknown configuration key"),
        (
            {"broker.id": "1", "node.id": "2"},
            "You must set `node.id` to the same value as `broker.id`.",
        ),
        ({"broker.id": "x"}, "Invalid value x for configuration broker.id: Not a number of type INT"),
        (
            {"segment.bytes": "1048576"},
            "segment.bytes: refused: a topic key; its default is set by log.segment.bytes",
        ),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable: refused: a topic key; it is set on topics only",
        ),
        (
            {"ssl.provider": "x"},
            "ssl.provider: refused: TLS is OpenSSL's: there are no providers to choose among; take it out",
        ),
        (
            {"num.io.threads": "9", "firn.config.strict": "true"},
            "num.io.threads: refused: a node is one event loop and small pools of threads; "
            "firn.processes uses more cores",
        ),
        ({"node.id": "x"}, "Invalid value x for configuration node.id: Not a number of type INT"),
        ({"node.id": "-1"}, "Invalid value -1 for configuration node.id: Value must be at least 0"),
        ({"node.id": "1_0"}, "Invalid value 1_0 for configuration node.id: Not a number of type INT"),
        (
            {"node.id": "2147483648"},
            "Invalid value 2147483648 for configuration node.id: Not a number of type INT",
        ),
        (
            {"node.id": "9" * 9999},
            f"Invalid value {'9' * 9999} for configuration node.id: Not a number of type INT",
        ),
        (
            {"log.segment.bytes": "5"},
            "Invalid value 5 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        (
            {"default.replication.factor": "0"},
            "Invalid value 0 for configuration default.replication.factor: Value must be at least 1",
        ),
        (
            {"auto.create.topics.enable": "yes"},
            "Invalid value yes for configuration auto.create.topics.enable: Expected value to be either "
            "true or false",
        ),
        (
            {"compression.type": "brotli"},
            "Invalid value brotli for configuration compression.type: "
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            {"process.roles": "broker,zookeeper"},
            "Invalid value zookeeper for configuration process.roles: "
            "String must be one of: broker, controller",
        ),
        ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log.dirs": ""}, "At least one log directory must be defined via log.dirs or log.dir."),
        ({"log.dirs": "/a,/b,/a"}, "log.dirs: a directory is named twice"),
        (
            {"queued.max.request.bytes": "5"},
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        ),
        (
            {"firn.disk.shrink.percent": "79"},
            "firn.disk.upload.percent (80) must not be more than firn.disk.shrink.percent (79)",
        ),
        (
            {"firn.disk.shrink.percent": "100"},
            "firn.disk.shrink.percent (100) must not be more than firn.disk.throttle.percent (92)",
        ),
        (
            {"firn.disk.upload.percent": "5", "firn.disk.margin.percent": "5"},
            "firn.disk.margin.percent must be less than firn.disk.upload.percent: else the step never ends",
        ),
        (
            {"firn.remote.s3.endpoint": "http://x:1"},
            "firn.remote.s3.endpoint has no effect without firn.remote.url=s3://…",
        ),
        (
            {"firn.remote.s3.region": "eu-1", "firn.remote.url": "file:///x"},
            "firn.remote.s3.region has no effect without firn.remote.url=s3://…",
        ),
        (
            {"firn.remote.s3.sse": "AES256", "firn.remote.url": "file:///x"},
            "firn.remote.s3.sse has no effect without firn.remote.url=s3://…",
        ),
        (
            {
                "firn.remote.s3.sse": "AES256",
                "firn.remote.s3.sse.kms.key.id": "alias/firn",
                "firn.remote.url": "s3://b",
            },
            "firn.remote.s3.sse.kms.key.id has no effect without firn.remote.s3.sse=aws:kms",
        ),
        (
            {"firn.remote.cache.bytes": "8388608", "firn.remote.chunk.bytes": "8388608"},
            "firn.remote.cache.bytes must hold at least two chunks of firn.remote.chunk.bytes",
        ),
        (
            {"controller.quorum.voters": "1@a:9093,2@b:9093"},
            "controller.listener.names must contain at least one value appearing in the 'listeners' "
            "configuration when running the KRaft controller role",
        ),
        (
            {"controller.quorum.voters": "1@a:9093,1@b:9093"},
            "controller.quorum.voters: node 1 is named twice",
        ),
        (
            {"controller.quorum.voters": "localhost"},
            "Invalid configuration value for controller.quorum.voters. "
            "Each entry should be in the form `{id}@{host}:{port}`.",
        ),
    ],
)
def test_a_bad_setting_is_refused_with_its_name_and_the_reason(
    properties: dict[str, str], message: str
) -> None:
    assert refused(properties) == message


def test_everything_wrong_is_reported_at_once() -> None:
    lines = refused({"node.id": "x", "ssl.provider": "1", "num.partitions": "0"}).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Invalid value x for configuration node.id",
        "Invalid value 0 for configuration num.partitions",
        "ssl.provider",
    ]
    together = {"colour": "blue", "log.dirs": "/a,/a", "firn.http.token.file": "/t"}
    assert refused(together).splitlines() == [
        "log.dirs: a directory is named twice",
        "firn.http.token.file has no effect without firn.http.listener",
        "colour: unknown configuration key",
    ]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("bucket", "Expected a URL such as"),
        ("http://bucket", "Expected a URL such as"),
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/x", "Credentials do not belong in the URL"),
        ("file://relative", "absolute path"),
    ],
)
def test_a_bad_store_url_is_refused(url: str, reason: str) -> None:
    assert reason in refused({"firn.remote.url": url})


@pytest.mark.parametrize(
    "key", ["firn.remote.s3.secret.access.key", "firn.remote.s3.access.key.id", "aws.secret"]
)
def test_secrets_are_never_configured(key: str) -> None:
    assert "credentials come from the environment" in refused({key: "hunter2"})
    assert "hunter2" not in refused({key: "hunter2"})


@pytest.mark.parametrize("key", ["firn.remote.url", "firn.remote.s3.endpoint", "num.partitions"])
def test_no_refusal_has_the_password_of_a_url(key: str) -> None:
    said = refused({key: "s3://me:hunter2@bucket/x"})
    assert "s3://[hidden]@bucket/x" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("text", ["4L6g3nShT-eMCtK--X86sw", "MkU3OEVBNTcwNTJENDM2Qg"])
def test_a_cluster_id_is_kafkas_base64_uuid(text: str) -> None:
    assert BrokerConfig.from_properties({"firn.cluster.id": text}).cluster_id == text


@pytest.mark.parametrize(
    "text", ["", "my-cluster", "AAAAAAAAAAAAAAAAAAAAAA", "4L6g3nShT-eMCtK--X86s!", "é" * 22]
)
def test_a_cluster_id_of_another_kind_is_refused(text: str) -> None:
    assert "22 characters of URL-safe base64" in refused({"firn.cluster.id": text})


def test_the_strongest_of_the_retention_keys_wins() -> None:
    hours = {"log.retention.hours": "2"}
    assert BrokerConfig.from_properties(hours).log.retention_ms == 7_200_000
    minutes = {**hours, "log.retention.minutes": "3"}
    assert BrokerConfig.from_properties(minutes).log.retention_ms == 180_000
    assert BrokerConfig.from_properties({**minutes, "log.retention.ms": "4"}).log.retention_ms == 4
    assert BrokerConfig.from_properties({"log.retention.hours": "-1"}).log.retention_ms == -1


def test_defaults_of_topics_come_from_the_node() -> None:
    node = BrokerConfig.from_properties(
        {
            "log.segment.bytes": "2000000",
            "message.max.bytes": "77",
            "log.flush.scheduler.interval.ms": "5",
            "log.roll.hours": "1",
            "log.segment.delete.delay.ms": "0",
            "log.index.size.max.bytes": "4096",
        }
    )
    config = topic_config({"max.message.bytes": "78"}, node)
    assert (config.segment_bytes, config.max_message_bytes, config.flush_ms) == (2_000_000, 78, 5)
    assert (config.segment_ms, config.file_delete_delay_ms, config.segment_index_bytes) == (
        3_600_000,
        0,
        4096,
    )


def test_dynamic_settings_change_only_what_takes_effect() -> None:
    node = BrokerConfig.from_properties({"log.retention.hours": "1"})
    changed = node.with_dynamic({"log.retention.ms": "5"}, {"log.segment.bytes": "2000000"})
    assert (changed.log.retention_ms, changed.log.segment_bytes) == (5, 2_000_000)
    assert changed.with_dynamic({}, {}).log == node.log
    with pytest.raises(ConfigError, match=r"Cannot update these configs dynamically: \[node.id\]"):
        node.with_dynamic({"node.id": "2"}, {})
    with pytest.raises(ConfigError, match="unknown configuration key"):
        node.with_dynamic({"foo": "2"}, {})


class TestListeners:
    def test_a_kafka_combined_node_starts_with_its_controller_listener_closed(self) -> None:
        node = BrokerConfig.from_properties(
            {
                "process.roles": "controller,broker",
                "node.id": "1",
                "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
                "advertised.listeners": "PLAINTEXT://broker.example:9092",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            }
        )
        assert [str(x) for x in node.listeners] == ["PLAINTEXT://0.0.0.0:9092"]
        assert [str(x) for x in node.advertised_listeners] == ["PLAINTEXT://broker.example:9092"]
        assert [str(x) for x in node.controller_listeners] == ["CONTROLLER://127.0.0.1:9093"]

    def test_an_empty_host_is_advertised_under_the_name_of_the_machine(self) -> None:
        node = BrokerConfig.from_properties({"listeners": "PLAINTEXT://:9092"})
        assert node.listeners[0].host == ""
        (advertised,) = node.placed(Path("/srv"), "broker.example").advertised_listeners
        assert str(advertised) == "PLAINTEXT://broker.example:9092"

    def test_ipv6_and_other_names(self) -> None:
        node = BrokerConfig.from_properties(
            {"listeners": "inner://[::1]:0", "listener.security.protocol.map": "INNER:PLAINTEXT"}
        )
        assert node.listeners == (("INNER", "::1", 0, SecurityProtocol.PLAINTEXT),)
        assert str(node.listeners[0]) == "INNER://[::1]:0"

    @pytest.mark.parametrize(
        ("properties", "reason"),
        [
            ({"listeners": "9092"}, "Unable to parse '9092'"),
            ({"listeners": "PLAINTEXT://h:99999"}, "a port must be between 0 and 65535"),
            ({"listeners": "PLAINTEXT://h:" + "9" * 5000}, "Unable to parse"),
            ({"listeners": "A://h:1"}, "No security protocol defined for listener A"),
            (
                {"listeners": "A://h:1", "listener.security.protocol.map": "A"},
                "expected NAME:PROTOCOL, found 'A'",
            ),
            ({"listeners": "A://h:1", "listener.security.protocol.map": "A:SSL,A:SSL"}, "A appears twice"),
            ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "must have a different name"),
            ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "nonroutable meta-address 0.0.0.0"),
            ({"advertised.listeners": "OTHER://h:1"}, "PLAINTEXT of listeners is missing"),
            (
                {"advertised.listeners": "PLAINTEXT://h:1,OTHER://h:1"},
                "Found OTHER. The valid options are PLAINTEXT",
            ),
            (
                {"controller.listener.names": "CONTROLLER"},
                "must only contain values appearing in the 'listeners'",
            ),
            ({"controller.listener.names": "PLAINTEXT"}, "at least one broker advertised listener"),
        ],
    )
    def test_listeners_that_cannot_be_are_refused(self, properties: dict[str, str], reason: str) -> None:
        assert reason in refused(properties)


def test_the_documentation_is_current() -> None:
    assert markdown() == (ROOT / "docs/configuration.md").read_text("utf-8"), (
        "run: python -m service.config.docs > docs/configuration.md"
    )
    assert from_kafka.markdown() == (ROOT / "docs/from-kafka.md").read_text("utf-8"), (
        "run: python -m service.config.from_kafka > docs/from-kafka.md"
    )


def test_types_are_numbered_as_on_the_wire() -> None:
    assert [(t.name, t.value) for t in ConfigType] == [
        ("BOOLEAN", 1),
        ("STRING", 2),
        ("INT", 3),
        ("LONG", 5),
        ("DOUBLE", 6),
        ("LIST", 7),
        ("CLASS", 8),
        ("PASSWORD", 9),
    ]


@pytest.mark.parametrize(
    "url", ["", "host:80", "http://", "http://a b", "http://u:p@h", "http://h\nx", "ftp://h"]
)
def test_a_bad_endpoint_is_refused(url: str) -> None:
    assert "firn.remote.s3.endpoint" in refused({"firn.remote.url": "s3://b", "firn.remote.s3.endpoint": url})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9000", "https://s3.eu-1.example.org/path", "http://[::1]:80/"]
)
def test_a_good_endpoint_is_taken(url: str) -> None:
    node = BrokerConfig.from_properties({"firn.remote.url": "s3://b", "firn.remote.s3.endpoint": url})
    assert node.remote_s3_endpoint == url


def test_an_encryption_of_s3_is_one_of_two_and_its_key_is_no_header_of_its_own() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    given = {
        "firn.remote.url": "s3://b",
        "firn.remote.s3.sse": "aws:kms",
        "firn.remote.s3.sse.kms.key.id": key,
    }
    node = BrokerConfig.from_properties(given)
    assert (node.remote_s3_sse, node.remote_s3_sse_kms_key_id) == ("aws:kms", key)
    assert BrokerConfig.from_properties({}).remote_s3_sse is None
    assert "firn.remote.s3.sse" in refused({**given, "firn.remote.s3.sse": "aes256"})
    for wrong in ("", "a b", "key\nx-amz-acl: public-read"):
        assert "firn.remote.s3.sse.kms.key.id" in refused({**given, "firn.remote.s3.sse.kms.key.id": wrong})


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_s3a_and_s3n_urls_are_s3_urls(scheme: str) -> None:
    url = f"{scheme}://bucket/prefix"
    node = BrokerConfig.from_properties({"firn.remote.url": url, "firn.remote.s3.region": "eu-west-1"})
    assert (node.remote_url, node.remote_s3_region) == (url, "eu-west-1")


def test_a_throttle_s_rate_is_set_while_the_node_runs_alone() -> None:
    key = "leader.replication.throttled.rate"
    assert "not in its properties" in refused({key: "1000"})
    node = BrokerConfig.from_properties({})
    assert node.replication.leader_replication_throttled_rate == LONG_MAX
    everyone, own = {key: "7"}, {key: "0"}
    assert node.with_dynamic({}, everyone).replication.leader_replication_throttled_rate == 7
    changed = node.with_dynamic(own, everyone).replication
    assert changed.leader_replication_throttled_rate == 0
    assert changed.follower_replication_throttled_rate == LONG_MAX
    with pytest.raises(ConfigError, match="at least 0"):
        node.with_dynamic({key: "-1"}, {})
    with pytest.raises(ConfigError, match="dynamically"):
        node.with_dynamic({"replication.quota.window.num": "3"}, {})


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (1, "value should be at least half the current value 4"),
        (9, "value should not be greater than double the current value 4"),
        (2, ""),
        (8, ""),
    ],
)
def test_loops_that_fetch_are_halved_or_doubled_at_most_while_the_node_runs(count: int, why: str) -> None:
    running = BrokerConfig.from_properties({"num.replica.fetchers": "4"})
    changed = running.with_dynamic({"num.replica.fetchers": str(count)}, {})
    assert changed.replication.num_replica_fetchers == count
    if not why:
        running.check_threads(changed)
        return
    with pytest.raises(ConfigError) as refused:
        running.check_threads(changed)
    assert str(refused.value) == (
        f"Dynamic thread count update validation failed for num.replica.fetchers={count}, {why}"
    )


def test_follower_fetch_last_tiered_offset_is_dynamic() -> None:
    key = "follower.fetch.last.tiered.offset.enable"
    changed = BrokerConfig.from_properties({}).with_dynamic({}, {key: "true"})
    assert changed.replication.follower_fetch_last_tiered_offset_enable


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("group.consumer.migration.policy", "DISABLED", "disabled"), ("ssl.keystore.type", "pkcs12", "PKCS12")],
)
def test_words_that_kafka_takes_in_any_case_are_taken_so(name: str, text: str, value: str) -> None:
    assert parse_value(BROKER_KEYS[name], text) == value


def test_a_nul_is_refused_before_a_path_has_it() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs: No file or name can have a NUL$"):
        parse_value(BROKER_KEYS["log.dirs"], "/data\0")
    with pytest.raises(ConfigError) as raised:
        parse_value(BROKER_KEYS["ssl.key.password"], "geheim\0")
    assert "geheim" not in str(raised.value)
