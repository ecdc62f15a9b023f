"""Topics, partitions and configurations through the clients' own admin interfaces."""

from __future__ import annotations

import asyncio
import time

import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import NODES, Broker, NewTopic
from tests.support.clients import CLIENTS, digest, make_rows
from tests.support.processes import wait_until


def test_confluent_creates_describes_and_deletes(broker: Broker) -> None:
    admin = broker.admin
    admin.create("confluent-made", 5, retention_bytes="1234567")
    # of several nodes another one may answer, which knows of it a little later
    wait_until("the topic to be known", lambda: admin.topics().get("confluent-made") == 5)
    assert admin.configs("confluent-made")["retention.bytes"] == "1234567"
    assert admin.configs("confluent-made")["retention.ms"] == "-1"
    admin.alter("confluent-made", retention_bytes="7654321")
    changed = {"retention.bytes": "7654321"}.items()
    wait_until("the change to be known", lambda: changed <= admin.configs("confluent-made").items())
    cluster = admin.client.describe_cluster().result(20)
    assert cluster.cluster_id
    assert [(node.id, node.host) for node in cluster.nodes] == [(1 + n, "127.0.0.1") for n in range(NODES)]
    names = confluent_kafka.TopicCollection(["confluent-made"])
    described = admin.client.describe_topics(names)["confluent-made"].result(20)
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    admin.delete("confluent-made")
    wait_until("the topic to be gone", lambda: "confluent-made" not in admin.topics())


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (confluent_admin.NewTopic("spaces are not allowed", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (confluent_admin.NewTopic("..", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (confluent_admin.NewTopic("x" * 250, 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (confluent_admin.NewTopic("ünïcode", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (confluent_admin.NewTopic("../../etc/passwd", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (confluent_admin.NewTopic("too-replicated", 1, NODES + 2), "INVALID_REPLICATION_FACTOR"),
        (confluent_admin.NewTopic("bad-key", 1, 1, config={"no.such.key": "1"}), "INVALID_CONFIG"),
        (confluent_admin.NewTopic("bad-value", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (confluent_admin.NewTopic("small", 1, 1, config={"segment.bytes": "7"}), "INVALID_CONFIG"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.topic[:20],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(
    topic: confluent_admin.NewTopic, code: str, broker: Broker
) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        broker.admin.client.create_topics([topic])[topic.topic].result(20)
    wanted = {"INVALID_TOPIC_EXCEPTION": "TOPIC_EXCEPTION"}.get(code, code)
    assert refused.value.args[0].code() == getattr(confluent_kafka.KafkaError, wanted)
    assert topic.topic not in broker.admin.topics()


def test_a_topic_is_created_once(broker: Broker, new_topic: NewTopic) -> None:
    name = new_topic(1)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        broker.admin.create(name)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS


def test_deleting_what_is_not_there_is_an_error(broker: Broker) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        broker.admin.delete("never-was")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validate_only_creates_nothing(broker: Broker) -> None:
    new = confluent_admin.NewTopic("only-validated", 1, 1)
    broker.admin.client.create_topics([new], validate_only=True)["only-validated"].result(20)
    assert "only-validated" not in broker.admin.topics()


def test_kafka_python_creates_describes_and_deletes(bootstrap: str, broker: Broker) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic("kafka-python-made", 2, 1)])
        wait_until("the topic to be listed", lambda: "kafka-python-made" in admin.list_topics())
        wait_until("all to know it", lambda: broker.admin.topics().get("kafka-python-made") == 2)
        admin.delete_topics(["kafka-python-made"])
        wait_until("the topic to be gone", lambda: "kafka-python-made" not in admin.list_topics())
    finally:
        admin.close()


def test_aiokafka_creates_describes_and_deletes(bootstrap: str) -> None:
    async def all_of_it() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic("aiokafka-made", 2, 1)])
            async with asyncio.timeout(30):
                while "aiokafka-made" not in await admin.list_topics():
                    await asyncio.sleep(0.05)
            (described,) = await admin.describe_topics(["aiokafka-made"])
            assert len(described["partitions"]) == 2
            await admin.delete_topics(["aiokafka-made"])
        finally:
            await admin.close()

    asyncio.run(all_of_it())


def test_a_topic_made_again_under_its_old_name_is_empty(broker: Broker) -> None:
    old, new = make_rows(50, 1, seed=1), make_rows(20, 1, seed=2)
    broker.admin.create("made-again")
    CLIENTS[0].produce(broker.bootstrap, "made-again", old)
    broker.admin.delete("made-again")
    wait_until("the topic to be gone", lambda: "made-again" not in broker.admin.topics())
    broker.admin.create("made-again")
    CLIENTS[0].produce(broker.bootstrap, "made-again", new)
    assert digest(CLIENTS[0].read(broker.bootstrap, "made-again", 0, 0, 20)) == digest(new)
    assert broker.offset("made-again", 0, -1) == 20


def test_producing_to_an_unknown_topic_creates_it(bootstrap: str, broker: Broker) -> None:
    # Such a topic keeps its records for a week.
    now = int(time.time() * 1000)
    rows = [row._replace(partition=0, timestamp=now) for row in make_rows(5, 1)]
    for client in CLIENTS:
        topic = f"made-by-producing-{client.name}"
        client.produce(bootstrap, topic, rows)
        assert digest(client.read(bootstrap, topic, 0, 0, 5)) == digest(rows)
