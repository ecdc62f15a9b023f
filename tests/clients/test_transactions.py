"""Transactions of real clients: seen whole or not at all, zombies fenced, timeouts and restarts survived.

`FIRN_TEST_BOOTSTRAP` judges them by Apache Kafka, started with
`transaction.abort.timed.out.transaction.cleanup.interval.ms=200`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from service.client.admin import Cluster
from service.client.transaction_queries import describe_transaction, list_transactions
from tests.clients.conftest import Broker, NewTopic
from tests.support.isolation import UNCOMMITTED, values
from tests.support.processes import wait_until
from tests.support.requirements import need_javac
from tests.support.transactional_client import TransactionalClient, settled
from tests.support.transactional_producers import PRODUCERS, Refused, Transactional
from tests.support.wire import RawConnection, schema

NONE = ErrorCode.none
Start = Callable[..., Transactional]
KINDS = [pytest.param(name, marks=[pytest.mark.java] if name == "java" else []) for name, _ in PRODUCERS]


@pytest.fixture
def start(bootstrap: str, tmp_path: Path) -> Iterator[Start]:
    """Start a producer of a kind, under an id."""
    started: list[Transactional] = []
    kinds = dict(PRODUCERS)

    def one(kind: str, transactional_id: str, timeout_ms: int = 60_000) -> Transactional:
        if kind == "java":
            need_javac()
        producer = kinds[kind](bootstrap, transactional_id, timeout_ms, tmp_path)
        started.append(producer)
        return producer

    yield one
    for producer in started:
        producer.close()


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (place,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], 30)
        offset: int = place.offset
        return offset
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_is_seen_whole_or_not_at_all(
    kind: str, start: Start, broker: Broker, new_topic: NewTopic
) -> None:
    topic, bootstrap = new_topic(2), broker.bootstrap
    producer = start(kind, f"whole-{topic}")
    producer.begin()
    producer.send(topic, 0, "a")
    producer.send(topic, 1, "b")
    producer.offset(topic, 0, 7, f"group-{topic}")
    assert values(bootstrap, topic) == []
    assert values(bootstrap, topic, UNCOMMITTED) == [b"a"]
    producer.commit()
    wait_until("its markers are there", lambda: values(bootstrap, topic, partition=1) == [b"b"])
    wait_until("its markers are there", lambda: values(bootstrap, topic) == [b"a"])
    wait_until("its offset is there", lambda: committed_offset(bootstrap, f"group-{topic}", topic) == 7)

    producer.begin()
    producer.send(topic, 0, "c")
    producer.offset(topic, 0, 9, f"group-{topic}")
    producer.abort()
    producer.begin()
    producer.send(topic, 0, "d")
    producer.commit()
    wait_until("the third is seen", lambda: values(bootstrap, topic) == [b"a", b"d"])
    assert values(bootstrap, topic, UNCOMMITTED) == [b"a", b"c", b"d"]
    assert committed_offset(bootstrap, f"group-{topic}", topic) == 7
    if broker.is_ours:
        with Cluster(bootstrap) as cluster:
            epoch = describe_transaction(cluster, lambda: False, f"whole-{topic}").producer_epoch
        assert epoch == (3 if kind == "java" else 0), "each end raises it, where the client speaks version 2"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_zombie_is_fenced(kind: str, start: Start, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    zombie = start(kind, f"zombie-{topic}")
    zombie.begin()
    zombie.send(topic, 0, "zombie")
    heir = start(kind, f"zombie-{topic}")
    heir.begin()
    heir.send(topic, 0, "heir")
    heir.commit()
    with pytest.raises(Refused, match=r"(?i)fence|epoch"):
        zombie.commit()
    wait_until("the heir's is seen", lambda: values(bootstrap, topic) == [b"heir"])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_takes_too_long_is_aborted_while_its_producer_lives(
    kind: str, start: Start, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = start(kind, f"slow-{topic}", 1000)
    producer.begin()
    producer.send(topic, 0, "slow")
    with TransactionalClient(bootstrap, f"behind-{topic}", version=1) as other:
        assert settled(other, other.init) == NONE
        assert settled(other, lambda: other.add((topic, 0))) == {(topic, 0): NONE}
        assert settled(other, lambda: other.produce(topic, 0, [b"behind"])).error_code == NONE
        assert settled(other, lambda: other.end(commit=True)) == NONE
    wait_until("it is aborted", lambda: values(bootstrap, topic) == [b"behind"], 30)
    with pytest.raises(Refused):
        producer.commit()
    producer = start(kind, f"slow-{topic}")
    producer.begin()
    producer.send(topic, 0, "again")
    producer.commit()
    wait_until("the next is seen", lambda: values(bootstrap, topic) == [b"behind", b"again"])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_goes_on_behind_a_restart(
    kind: str, start: Start, broker: Broker, new_topic: NewTopic
) -> None:
    restart = broker.need_restart()
    topic = new_topic()
    producer = start(kind, f"restarted-{topic}")
    producer.begin()
    producer.send(topic, 0, "before")
    restart()
    producer.send(topic, 0, "behind")
    assert values(broker.bootstrap, topic) == []
    producer.commit()
    wait_until("both are seen", lambda: values(broker.bootstrap, topic) == [b"before", b"behind"])


def need_version(broker: Broker, version: int) -> None:
    """Leave a test out where somebody else's cluster has a lower `transaction.version`; ours begin at 2."""
    module = schema(18, 3)
    request = module.ApiVersionsRequest(client_software_name="firn", client_software_version="1")
    with RawConnection(broker.bootstrap) as connection:
        levels = {one.name: one.max_version_level for one in connection.call(request).finalized_features}
    level = levels.get("transaction.version", 0)
    assert level == 2 or not broker.is_ours
    if version > max(level, 1):
        pytest.skip(f"the cluster's transaction.version is below {version}")


@pytest.mark.parametrize("version", [1, 2])
def test_each_protocol_step_by_step(version: int, broker: Broker, new_topic: NewTopic) -> None:
    """A zombie, an abort, a timeout and offsets, of a raw client, which speaks both protocols."""
    need_version(broker, version)
    bootstrap = broker.bootstrap
    topic, group = new_topic(2), f"stepwise-{version}"
    with contextlib.ExitStack() as stack:

        def client(timeout_ms: int = 60_000) -> TransactionalClient:
            made = TransactionalClient(bootstrap, f"steps-{topic}", version=version, timeout_ms=timeout_ms)
            stack.enter_context(made)
            assert settled(made, made.init) == NONE
            return made

        def write(one: TransactionalClient, value: bytes) -> None:
            places = ((topic, 0), (topic, 1))
            if version == 1:
                assert settled(one, lambda: one.add(*places)) == dict.fromkeys(places, NONE)
            answers = settled(one, lambda: one.produce_many({place: [value] for place in places}))
            assert {answer.error_code for answer in answers.values()} == {NONE}

        first = client()
        write(first, b"aborted by its heir")
        heir = client(timeout_ms=1000)
        assert first.end(commit=True) == ErrorCode.producer_fenced
        write(heir, b"committed")
        if version == 1:
            assert settled(heir, lambda: heir.add_offsets(group)) == NONE
        offsets = {(topic, 0): 3}
        assert settled(heir, lambda: heir.commit_offsets(group, offsets)) == {(topic, 0): NONE}
        assert settled(heir, lambda: heir.end(commit=True)) == NONE
        write(heir, b"aborted")
        assert settled(heir, lambda: heir.end(commit=False)) == NONE
        write(heir, b"timed out")
        last = TransactionalClient(bootstrap, f"last-{topic}", version=1)
        stack.enter_context(last)
        assert settled(last, last.init) == NONE
        assert settled(last, lambda: last.add((topic, 1))) == {(topic, 1): NONE}
        assert settled(last, lambda: last.produce(topic, 1, [b"behind"])).error_code == NONE
        assert settled(last, lambda: last.end(commit=True)) == NONE
        wait_until(
            "the timeout", lambda: values(bootstrap, topic, partition=1) == [b"committed", b"behind"], 30
        )
        assert values(bootstrap, topic) == [b"committed"]
        late = ErrorCode.producer_fenced if version == 1 else ErrorCode.invalid_txn_state
        assert heir.end(commit=True) == late
        assert committed_offset(bootstrap, group, topic) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("version", [1, 2])
def test_a_sink_ends_what_another_process_prepared(version: int, broker: Broker, new_topic: NewTopic) -> None:
    """As Flink's: records are flushed, producer id and epoch are stored with a checkpoint, and whoever takes
    it up commits by them, behind a restart of the nodes; what no checkpoint names is listed and aborted."""
    restart = broker.need_restart()
    need_version(broker, version)
    topic, prefix = new_topic(2), f"sink-{version}"

    def prepare(number: int, value: bytes) -> tuple[str, int, int]:
        name = f"{prefix}-{topic}-{number}"
        with TransactionalClient(broker.bootstrap, name, version=version, timeout_ms=600_000) as client:
            assert settled(client, client.init) == NONE
            places = ((topic, 0), (topic, 1))
            if version == 1:
                assert settled(client, lambda: client.add(*places)) == dict.fromkeys(places, NONE)
            answers = settled(client, lambda: client.produce_many({place: [value] for place in places}))
            assert {one.error_code for one in answers.values()} == {NONE}
            return name, client.producer_id, client.epoch

    def end(checkpoint: tuple[str, int, int]) -> ErrorCode:
        name, producer_id, epoch = checkpoint
        with TransactionalClient(broker.bootstrap, name, version=version) as client:
            client.producer_id, client.epoch = producer_id, epoch
            code: ErrorCode = settled(client, lambda: client.end(commit=True))
            return code

    checkpoints = [prepare(number, b"%d" % number) for number in range(10)]
    restart()
    leftover = checkpoints.pop()
    assert [end(one) for one in checkpoints] == [NONE] * 9
    assert [end(one) for one in checkpoints] == [NONE] * 9, (
        "whoever takes a checkpoint up twice commits twice"
    )
    with Cluster(broker.bootstrap) as cluster:
        listing = list_transactions(
            cluster, lambda: False, pattern=f"{prefix}-{topic}-.*", states=("Ongoing",)
        )
    assert [row.transactional_id for row in listing.rows] == [leftover[0]]
    with TransactionalClient(broker.bootstrap, leftover[0], version=version) as client:
        assert settled(client, client.init) == NONE

    def seen(partition: int) -> list[bytes]:
        return sorted(values(broker.bootstrap, topic, partition=partition))

    expected = [b"%d" % number for number in range(9)]
    wait_until("all is ended", lambda: [seen(0), seen(1)] == [expected, expected])
