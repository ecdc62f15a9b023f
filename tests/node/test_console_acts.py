"""Acts of the console on a whole node: each is done once, as its preview showed it, and told in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from service.cli.main import main
from service.client.admin import LATEST, Cluster
from service.client.offset_queries import list_offsets
from service.groups.admin_queries import committed_offsets, find_group, list_groups
from tests.node.conftest import NodeThread
from tests.support.clients import Admin
from tests.support.console_thread import ConsoleThread
from tests.support.processes import wait_until
from tests.support.signed_in import TOKEN, SignedIn, confirmation


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a node that all these tests share."""
    folder = tmp_path_factory.mktemp("acts")
    thread = NodeThread(
        folder, offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0"
    ).start()
    yield f"{thread.host}:{thread.port}"
    thread.stop()


@pytest.fixture(scope="module")
def console(node: str) -> Iterator[ConsoleThread]:
    with ConsoleThread(node, token=TOKEN, allow_changes=True) as running:
        yield running


@pytest.fixture
def somebody(console: ConsoleThread) -> SignedIn:
    return SignedIn(console.url)


@pytest.fixture
def cluster(node: str) -> Iterator[Cluster]:
    with Cluster(node) as found:
        yield found


def audited(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    """Return what the console's lines of this kind of act tell: those of a node have no session."""
    told = [getattr(record, "audit", {}) for record in caplog.records if record.name == "firn.audit"]
    return [one for one in told if one.get("event") == event and "session" in one]


def names(cluster: Cluster) -> list[str]:
    return [one.name for one in cluster.topics()]


def make(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic, and wait until the broker tells of it: Kafka's does so a moment later."""
    Admin(bootstrap).create(topic, partitions, **configs)
    with Cluster(bootstrap) as cluster:
        wait_until(f"{topic} is there", lambda: topic in names(cluster))


def has_committed(bootstrap: str, group: str, topic: str, offsets: list[int]) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    places = [confluent_kafka.TopicPartition(topic, n, offset) for n, offset in enumerate(offsets)]
    consumer.assign(places)
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def write(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert not producer.flush(30)


def committed(cluster: Cluster, group: str) -> dict[tuple[str, int], int]:
    row = find_group(list_groups(cluster), group)
    return committed_offsets(cluster, row.node, group)


def test_a_topic_is_created_grows_and_goes(
    somebody: SignedIn, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shown = somebody.preview(
        "create-topic", topic="orders", partitions="2", settings="retention.ms = 86400000\n\nsegment.ms=1000"
    )
    assert shown.row("retention.ms") == ["retention.ms", "86400000"]
    assert "nothing has been done yet" in shown.text
    assert "orders" not in names(cluster)
    result = somebody.confirm(shown, "orders")
    assert "The topic orders is there." in result.text
    wait_until("it is there", lambda: "orders" in names(cluster))
    (topic,) = cluster.topics(["orders"])
    assert len(topic.partitions) == 2
    assert cluster.topic_overrides("orders") == {"retention.ms": "86400000", "segment.ms": "1000"}
    (line,) = audited(caplog, "topics-created")
    assert line["items"] == ["orders [partitions=2 replicas=-1 retention.ms=86400000 segment.ms=1000]"]
    assert (line["outcome"], line["host"]) == ("done", "127.0.0.1")
    assert str(line["request"]) in result.text

    again = somebody.preview("create-topic", topic="orders")
    assert (again.status, "orders' already exists" in again.text) == (400, True), again.text

    shown = somebody.preview("add-partitions", topic="orders", partitions="5")
    assert "Partitions now 2 Partitions then 5" in shown.text
    assert "orders has 5 partitions." in somebody.confirm(shown, "orders").text
    wait_until("it has grown", lambda: len(cluster.topics(["orders"])[0].partitions) == 5)
    fewer = somebody.preview("add-partitions", topic="orders", partitions="3")
    assert (fewer.status, "INVALID_PARTITIONS" in fewer.text) == (400, True)

    assert "The topic orders is deleted." in somebody.act("delete-topic", "orders", topic="orders").text
    wait_until("it is gone", lambda: "orders" not in names(cluster))
    (line,) = audited(caplog, "topics-deleted")
    assert line["items"] == [f"orders [id={topic.topic_id}]"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"topic": "../../etc"}, "Topic name is invalid: '../../etc'"),
        ({"topic": ".."}, "'..' is not allowed"),
        ({"topic": "<b>é</b>"}, "Topic name is invalid: '<b>é</b>'"),
        ({"topic": "x" * 250}, "250 characters are too many"),
        ({"topic": "big", "partitions": "2147483647"}, "Excessively large number of partitions"),
        ({"topic": "t", "partitions": "-1"}, "Partitions is a number from 1"),
        ({"topic": "t", "replication": "32767"}, "only 1 broker(s)"),
        ({"topic": "t", "settings": "retention.ms=<script>"}, "Invalid value <script>"),
        ({"topic": "t", "settings": "nonsense=1"}, "Unknown topic config name: nonsense"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_in_words(
    somebody: SignedIn, fields: dict[str, str], said: str
) -> None:
    refused = somebody.preview("create-topic", **fields)
    assert (refused.status, said in refused.text) == (400, True), refused.text


def test_another_topic_of_the_name_is_not_deleted(
    somebody: SignedIn, node: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make(node, "twice")
    shown = somebody.preview("delete-topic", topic="twice")
    somebody.act("delete-topic", "twice", topic="twice")
    make(node, "twice")
    result = somebody.confirm(shown, "twice")
    assert "Nothing was done" in result.text
    assert "What it would do now" in result.text
    assert len(cluster.topics(["twice"])) == 1
    assert [one["outcome"] for one in audited(caplog, "topics-deleted")] == [
        "done",
        "changed since the preview",
    ]
    # The result has the newer preview, which can be confirmed in its place.
    assert "The topic twice is deleted." in somebody.confirm(result, "twice").text


def test_settings_of_topics_and_brokers_are_changed_and_secrets_hidden(
    somebody: SignedIn, node: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    make(node, "tuned", 1, retention_ms="1000")
    shown = somebody.preview(
        "topic-settings", topic="tuned", set="segment.bytes=1048576", unset="retention.ms"
    )
    assert shown.row("segment.bytes")[2] == "1048576"
    assert shown.row("retention.ms") == ["retention.ms", "1000", "back to the default"]
    assert "The settings of topic tuned are changed." in somebody.confirm(shown, "tuned").text
    assert cluster.topic_overrides("tuned") == {"segment.bytes": "1048576"}

    # The value is another when it is confirmed.
    shown = somebody.preview("topic-settings", topic="tuned", set="segment.bytes=2097152")
    somebody.act("topic-settings", "tuned", topic="tuned", set="segment.bytes=4194304")
    assert "What it would do now" in somebody.confirm(shown, "tuned").text
    assert cluster.topic_overrides("tuned") == {"segment.bytes": "4194304"}

    wrong = somebody.preview("topic-settings", topic="tuned", set="segment.bytes=lots")
    assert (wrong.status, "INVALID_CONFIG" in wrong.text) == (400, True)
    assert "lots" in wrong.source

    secret = "hunter2-and-more"
    refused = somebody.preview("broker-settings", set=f"ssl.keystore.password={secret}")
    assert (refused.status, "the metadata is copied to the bucket" in refused.text) == (400, True)
    assert secret not in caplog.text
    done = somebody.act("broker-settings", "all brokers", set="log.cleaner.threads=2")
    assert "The settings of all brokers are changed." in done.text
    shown = somebody.preview("broker-settings", broker="1", unset="log.cleaner.threads")
    assert "The settings of broker 1 are changed." in somebody.confirm(shown, "1").text
    assert somebody.preview("broker-settings", broker="77", set="log.cleaner.threads=2").status == 503


def test_offsets_are_reset_as_the_preview_showed_them(
    somebody: SignedIn, node: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make(node, "read", 2)
    write(node, "read", 20)
    has_committed(node, "billing", "read", [4, 6])
    shown = somebody.preview("reset-offsets", group="billing", mode="latest")
    assert shown.row("read")[1:] == ["0", "4", "10", "+6"]
    # Records that come meanwhile change nothing of it.
    write(node, "read", 4)
    assert "2 of 2 partitions got other offsets." in somebody.confirm(shown, "billing").text
    assert committed(cluster, "billing") == {("read", 0): 10, ("read", 1): 10}
    (line,) = audited(caplog, "offsets-reset")
    assert line["items"] == ["billing [2 of 2 partitions]"]

    # What the group commits meanwhile does.
    shown = somebody.preview("reset-offsets", group="billing", topic="read", mode="earliest")
    has_committed(node, "billing", "read", [11, 11])
    changed = somebody.confirm(shown, "billing")
    assert "it is not any more as the preview showed it" in changed.text
    assert committed(cluster, "billing") == {("read", 0): 11, ("read", 1): 11}
    assert changed.row("read")[2:] == ["11", "0", "-11"]

    for mode, at, partitions, wanted in (
        ("offset", "3", "0", {0: 3, 1: 11}),
        ("shift", "-5", "1", {0: 3, 1: 6}),
        ("shift", "-100", "1", {0: 3, 1: 0}),
        ("time", "2100-01-01", "0", {0: 12, 1: 0}),
        ("ago", "PT1H", "0", {0: 0, 1: 0}),
        ("ago", "PT1H", "0", {0: 0, 1: 0}),
        ("current", "", "", {0: 0, 1: 0}),
    ):
        done = somebody.act(
            "reset-offsets", "billing", group="billing", topic="read", partitions=partitions, mode=mode, at=at
        )
        assert "got other offsets" in done.text, done.text
        assert committed(cluster, "billing") == {("read", n): offset for n, offset in wanted.items()}
    for said, fields in {
        "Partitions: expected numbers": {"topic": "read", "partitions": "x"},
        "Partitions: of which topic?": {"partitions": "1"},
        "there is no topic nothing": {"topic": "nothing"},
        "there is no read-7": {"topic": "read", "partitions": "7"},
    }.items():
        wrong = somebody.preview("reset-offsets", group="billing", mode="latest", **fields)
        assert (wrong.status, said in wrong.text) == (400, True), wrong.text


def test_a_group_with_members_keeps_its_offsets(somebody: SignedIn, node: str) -> None:
    make(node, "busy", 2)
    has_committed(node, "reader", "busy", [0, 0])
    shown = somebody.preview("delete-group", group="reader")
    settings = {"bootstrap.servers": node, "group.id": "reader", "enable.auto.commit": False}
    member = confluent_kafka.Consumer(settings)
    member.subscribe(["busy"])
    try:
        while len(member.assignment()) < 2:
            member.poll(0.05)
        assert "it has members, and is not deleted" in somebody.confirm(shown, "reader").text
        wrong = somebody.preview("reset-offsets", group="reader", mode="latest")
        assert (wrong.status, "only a group without members can be reset" in wrong.text) == (400, True)
    finally:
        member.close()


def test_a_groups_offsets_and_the_group_are_deleted(
    somebody: SignedIn, node: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for topic in ("one", "other"):
        make(node, topic, 2)
        has_committed(node, "gone <b>&", topic, [0, 0])
    shown = somebody.preview("delete-offsets", group="gone <b>&", topic="one", partitions="1")
    assert shown.row("one") == ["one", "1", "0"]
    assert "1 of 1 partition lost their offsets." in somebody.confirm(shown, "gone <b>&").text
    assert set(committed(cluster, "gone <b>&")) == {("one", 0), ("other", 0), ("other", 1)}
    nothing = somebody.preview("delete-offsets", group="gone <b>&", topic="one", partitions="1")
    assert (nothing.status, "has committed nothing there" in nothing.text) == (400, True)

    shown = somebody.preview("delete-group", group="gone <b>&")
    assert "Committed offsets 3" in shown.text
    assert "The group gone <b>& is deleted." in somebody.confirm(shown, "gone <b>&").text
    assert [one for one in list_groups(cluster).rows if one.group_id == "gone <b>&"] == []
    (line,) = audited(caplog, "groups-deleted")
    assert line["items"] == ["gone <b>&"]
    unknown = somebody.preview("delete-group", group="gone <b>&")
    assert (unknown.status, "there is no group" in unknown.text) == (400, True)


def test_a_record_is_produced_with_key_value_and_headers(
    somebody: SignedIn, node: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make(node, "typed", 7)
    shown = somebody.preview(
        "produce", topic="typed", key_form="text", key="foobar", value_form="json",
        value='{"a": [1,\r\n 2]}', headers="trace=é=1\r\nempty=",
    )  # fmt: skip
    assert "Partition 0, by the key, as Java's clients choose it" in shown.text
    result = somebody.confirm(shown, "typed")
    assert "The record is in typed-0, at offset 0." in result.text
    for form, fields in (
        ("hex", {"value_form": "hex", "value": "00 ff\n7f", "partition": "3"}),
        ("none", {"value_form": "none", "key_form": "hex", "key": "6b", "partition": "3"}),
    ):
        assert "typed-3" in somebody.act("produce", "typed", topic="typed", **fields).text, form
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node, "group.id": "x"})
    consumer.assign([confluent_kafka.TopicPartition("typed", n, 0) for n in (0, 3)])
    found: dict[tuple[int, int], Any] = {}
    while len(found) < 3:
        message = consumer.poll(1)
        assert message is not None
        found[message.partition(), message.offset()] = message
    consumer.close()
    assert (found[0, 0].key(), found[0, 0].value()) == (b"foobar", b'{"a": [1,\n 2]}')
    assert found[0, 0].headers() == [("trace", "é=1".encode()), ("empty", b"")]
    assert (found[3, 0].key(), found[3, 0].value()) == (None, b"\x00\xff\x7f")
    assert (found[3, 1].key(), found[3, 1].value()) == (b"k", None)
    first = audited(caplog, "records-produced")[0]
    assert first["items"] == ["typed-0 [key=6 bytes value=14 bytes] at offset 0"]
    assert "foobar" not in caplog.text

    for said, fields in {
        "The value is no JSON: line 1, column 2": {"value_form": "json", "value": "{"},
        "The key: not hexadecimal digits": {"key_form": "hex", "key": "abc", "value_form": "text"},
        "Headers, line 1: expected NAME=VALUE": {"value_form": "text", "headers": "x"},
        "typed has the partitions 0 to 6, and no 7": {"value_form": "text", "partition": "7"},
        "Partition is a number from 0 to 2,147,483,647": {"value_form": "text", "partition": "-1"},
        "there is text in the field": {"value_form": "none", "value": "x"},
    }.items():
        wrong = somebody.preview("produce", topic="typed", **fields)
        assert (wrong.status, said in wrong.text) == (400, True), wrong.text


def test_a_form_that_is_sent_twice_is_carried_out_once(
    somebody: SignedIn, node: str, cluster: Cluster
) -> None:
    make(node, "double", 1)
    shown = somebody.preview("produce", topic="double", value_form="text", value="x")
    results = [somebody.post("/change/confirm", confirmation(shown, "double")) for _ in range(3)]
    assert len({one.text for one in results}) == 1
    assert "at offset 0" in results[0].text
    assert list_offsets(cluster, [("double", 0)], LATEST)["double", 0].offset == 1


def test_the_clusters_rules_hold_and_their_refusal_is_told(
    start: Callable[..., NodeThread], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = start(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:admin",
        allow_everyone_if_no_acl_found="true",
    )
    bootstrap = f"{running.host}:{running.port}"
    Admin(bootstrap).create("kept")
    rule = ["--allow-principal", "User:ANONYMOUS", "--operation", "Describe"]
    for resource in (["--topic", "kept"], ["--cluster"]):  # who has an entry has no other right there
        assert main(["acl", "add", *rule, *resource, "--bootstrap-server", bootstrap]) == 0
    with ConsoleThread(bootstrap, token=TOKEN, allow_changes=True) as console:
        session = SignedIn(console.url)
        result = session.act("delete-topic", "kept", topic="kept")
        words = "It was not done: topic kept: Topic authorization failed. (TOPIC_AUTHORIZATION_FAILED)"
        assert words in result.text
        wrong = session.preview("topic-settings", topic="kept", set="retention.ms=1")
        assert (wrong.status, "TOPIC_AUTHORIZATION_FAILED" in wrong.text) == (400, True)
    with Cluster(bootstrap) as found:
        assert [one.name for one in found.topics()] == ["kept"]
    assert [one["outcome"] for one in audited(caplog, "topics-deleted")] == [
        "refused (TOPIC_AUTHORIZATION_FAILED)"
    ]
