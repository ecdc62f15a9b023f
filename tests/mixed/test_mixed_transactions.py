"""Transactions across brokers of Firn and of Apache Kafka 4.3.1, at each level of `transaction.version`.

One leads a partition that the other follows, and the reverse; each coordinates transactions and groups in
turn, and takes over what the other has begun. Consumers see the same at leaders and followers, and files of
both hold the same bytes.
"""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from service.inspect.dump import write_json
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.wire.api import ApiKey, request_module
from tests.support.clients import Admin
from tests.support.isolation import UNCOMMITTED, values
from tests.support.mixed import FIRN, FIRST_BROKER, Mixed, mixed
from tests.support.placing import in_sync, lead
from tests.support.processes import wait_until
from tests.support.transactional_client import Place, TransactionalClient, settled
from tests.support.wire import RawConnection, schema

pytestmark = pytest.mark.java

OURS, THEIRS = FIRST_BROKER, FIRST_BROKER + 1
OTHER = {OURS: THEIRS, THEIRS: OURS}
FLIGHTS, STATES, OFFSETS = "flights", "__transaction_state", "__consumer_offsets"
PLACES: tuple[Place, ...] = ((FLIGHTS, 0), (FLIGHTS, 1))
"""led by Firn, and by Kafka"""
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
}
NONE = ErrorCode.none
LOG = "00000000000000000000.log"


class Journey:
    """What clients do at one level after the other, and what is to be seen of it."""

    def __init__(self, cluster: Mixed) -> None:
        self.cluster = cluster
        self.level = 0
        self.committed: list[bytes] = []
        self.written: list[bytes] = []
        self.states: dict[str, tuple[str, int]] = {}
        """of each id, its last state and the version of its records"""

    def client(self, name: str) -> TransactionalClient:
        version = 2 if self.level == 2 else 1
        return TransactionalClient(self.cluster.asked.bootstrap, name, version=version)

    def begin(self, client: TransactionalClient, value: str) -> None:
        """Write the value to both partitions."""
        for place in PLACES:
            if not client.is_second:
                assert settled(client, partial(client.add, place)) == {place: NONE}
            answer = settled(client, partial(client.produce, *place, [value.encode()]))
            assert answer.error_code == NONE, (place, answer)
        self.written.append(value.encode())

    def offset(self, client: TransactionalClient, offset: int) -> None:
        if not client.is_second:
            assert settled(client, lambda: client.add_offsets("g")) == NONE
        answer = settled(client, lambda: client.commit_offsets("g", {PLACES[0]: offset}))
        assert answer == {PLACES[0]: NONE}

    def end(self, client: TransactionalClient, *, commit: bool) -> None:
        assert settled(client, lambda: client.end(commit=commit)) == NONE
        if commit:
            self.committed.append(self.written[-1])
        state = "CompleteCommit" if commit else "CompleteAbort"
        self.states[client.transactional_id] = (state, min(self.level, 1))

    def transact(self, coordinator: int) -> None:
        """One client commits, aborts, and is fenced in the midst of the third."""
        name = f"level-{self.level}-{coordinator}"
        with self.client(name) as client, self.client(name) as heir:
            assert settled(client, client.init) == NONE
            if not client.is_second:
                for place in PLACES:
                    answer = client.produce(*place, [b"unknown to the coordinator"])
                    assert answer.error_code == ErrorCode.transaction_abortable, place
            before = committed_offset(self.cluster)
            self.begin(client, f"{name} committed")
            self.offset(client, len(self.written))
            assert committed_offset(self.cluster) == before
            self.end(client, commit=True)
            wait_until("its offset", lambda: committed_offset(self.cluster) == len(self.written))
            self.begin(client, f"{name} aborted")
            self.offset(client, 1000)
            self.end(client, commit=False)
            self.begin(client, f"{name} fenced")
            assert settled(heir, heir.init) == NONE
            assert client.end(commit=True) == ErrorCode.producer_fenced
            self.begin(heir, f"{name} of its heir")
            self.end(heir, commit=True)

    def judge(self) -> None:
        """Leaders and followers show the same, at both isolation levels."""
        bootstrap = self.cluster.bootstrap
        for member in self.cluster.brokers.values():
            for _, partition in PLACES:

                def shown(
                    isolation: int, at: str = member.bootstrap, partition: int = partition
                ) -> list[bytes]:
                    return values(bootstrap, FLIGHTS, isolation, partition=partition, at=at)

                wait_until("all is there", lambda shown=shown: shown(UNCOMMITTED) == self.written)  # type: ignore[misc]
                wait_until("all is ended", lambda shown=shown: shown(1) == self.committed)  # type: ignore[misc]


def committed_offset(cluster: Mixed) -> int:
    # At read_committed it would wait for offsets that are pending.
    options = {"group.id": "g", "isolation.level": "read_uncommitted", "log_level": 2}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **options})
    try:
        (place,) = consumer.committed([TopicPartition(*PLACES[0])], 30)
        return int(place.offset)
    finally:
        consumer.close()


async def raise_level(cluster: Mixed, level: int) -> None:
    """`transaction.version` is at the level, as each broker says."""
    module = request_module(ApiKey.UPDATE_FEATURES)
    update = module.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=1)
    message = module.UpdateFeaturesRequest(timeout=4_000, feature_updates=(update,), validate_only=False)
    await cluster.change(ApiKey.UPDATE_FEATURES, message, lambda one: [(one.error_code, one.error_message)])
    for member in cluster.brokers.values():
        await asyncio.to_thread(
            wait_until,
            "the level",
            lambda at=member.bootstrap: finalized(at) == level,  # type: ignore[misc]
        )


def finalized(bootstrap: str) -> int:
    request = schema(18, 3).ApiVersionsRequest(client_software_name="firn", client_software_version="1")
    with RawConnection(bootstrap) as connection:
        levels = {one.name: one.max_version_level for one in connection.call(request).finalized_features}
    return int(levels.get("transaction.version", 0))


async def coordinate(cluster: Mixed, broker: int) -> None:
    """That one coordinates transactions, and the other the group."""
    await lead(cluster, STATES, {0: [broker, OTHER[broker]]})
    await lead(cluster, OFFSETS, {0: [OTHER[broker], broker]})


async def live(cluster: Mixed) -> Journey:
    admin = Admin(cluster.asked.bootstrap)
    await asyncio.to_thread(admin.replicate, FLIGHTS, 2, 2)
    await in_sync(cluster, FLIGHTS)
    await lead(cluster, FLIGHTS, {0: [OURS, THEIRS], 1: [THEIRS, OURS]})
    journey = Journey(cluster)
    with journey.client("first") as first:  # the topics of states and offsets are made
        assert settled(first, first.init) == NONE
        journey.states["first"] = ("Empty", 0)
    await asyncio.to_thread(committed_offset, cluster)
    for level in (0, 1, 2):
        if level:
            await raise_level(cluster, level)
        journey.level = level
        for broker in (THEIRS, OURS):
            await coordinate(cluster, broker)
            await asyncio.to_thread(journey.transact, broker)
            await asyncio.to_thread(journey.judge)
            with journey.client(f"moves-{level}-{broker}") as moves:
                assert await asyncio.to_thread(settled, moves, moves.init) == NONE
                await asyncio.to_thread(journey.begin, moves, f"moves from {broker} at {level}")
                await coordinate(cluster, OTHER[broker])
                await asyncio.to_thread(lambda one=moves: journey.end(one, commit=True))  # type: ignore[misc]
            await asyncio.to_thread(journey.judge)
    return journey


def newest_states(path: Path) -> dict[str, tuple[str, int]]:
    out = io.StringIO()
    write_json(dump(open_source(str(path)), records=True), out)
    rows = json.loads(out.getvalue())["records"]
    return {row["transactional_id"]: (row["state"], row["version"]) for row in rows}


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "controller", ["firn", pytest.param("kafka", marks=pytest.mark.soak)], ids=lambda one: f"{one}-controls"
)
def test_each_coordinates_what_the_other_leads(tmp_path: Path, controller: str) -> None:
    firn = {OURS} | ({FIRN} if controller == "firn" else set())

    async def scenario() -> None:
        async with mixed(tmp_path, controllers=1, brokers=2, firn=firn, settings=SETTINGS) as cluster:
            journey = await live(cluster)
            for topic in (FLIGHTS, STATES):
                await in_sync(cluster, topic)
            await cluster.stop()
            data = {one: member.data for one, member in cluster.brokers.items()}
            assert newest_states(data[OURS] / f"{STATES}-0" / LOG) == journey.states
            for name in (f"{FLIGHTS}-0", f"{FLIGHTS}-1", f"{STATES}-0"):
                ours, theirs = ((data[one] / name / LOG).read_bytes() for one in (OURS, THEIRS))
                assert ours == theirs, name
            for partition in range(2):
                index = Path(f"{FLIGHTS}-{partition}", LOG).with_suffix(".txnindex")
                assert (data[OURS] / index).read_bytes() == (data[THEIRS] / index).read_bytes() != b""
            complaints = {one.node_id: one.complaints() for one in cluster.members.values()}
            assert not any(complaints.values()), complaints

    asyncio.run(scenario())
