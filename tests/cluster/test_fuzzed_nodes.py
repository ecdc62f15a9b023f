"""Frames that are damaged in every way, to both listeners of three nodes: none dies, none remembers them, and
nothing gets into the metadata log that does not belong there.

`make fuzz FUZZ_FRAMES=1000000 SEED=7` sends as many as one likes. First come frames that cannot be read:
after them the log is as it was. Then any: what of them can be read may be done, and what is done is sound.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.batches import decode_batches
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.wire.api import APIS, ApiKey, decode_request, decode_response, parse_request_header
from service.wire.apis import ListenerType, served_on
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.fetch import parse_fetch
from service.wire.primitives import MAX_ELEMENTS
from tests.support.changes import Changes
from tests.support.clients import Admin
from tests.support.fuzzing import Likely, damage, request_frame
from tests.support.processes import peak_rss_bytes, wait_until
from tests.support.quorums import Cluster, Member

FRAMES = int(os.environ.get("FUZZ_FRAMES", "10000"))
SEED = int(os.environ.get("SEED", "20261123"))
CONNECTIONS: Final = 4
"""to each listener"""
PATIENCE_S: Final = 0.1
"""How long a frame may wait for its answer before the next one is sent, on another connection"""
ROUND: Final = 50_000
OF_EACH: Final = 3
"""damaged frames that are made from a sound one"""
BEGIN: Final = 8
"""bytes of a header that stay: key, version, correlation id"""
MOST_BYTES: Final = 48 << 20
"""by which a node may grow, whatever comes"""
PARTITION_BYTES: Final = 16 << 10
"""and for each partition that it has been given: who asks for thousands gets them"""
FORWARDED: Final = (
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_QUORUM,
    ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER,
)  # fmt: skip


class Place(NamedTuple):
    """A listener, and what it is asked."""

    host: str
    port: int
    keys: Sequence[int]


class Frame(NamedTuple):
    key: int
    version: int
    data: bytes


def places(cluster: Cluster) -> list[Place]:
    """Both listeners of each node. What one does not serve costs the connection: of that there is little."""
    found = []
    for member in cluster.members.values():
        broker, controller = (
            one.partition("://")[2].rpartition(":")[::2] for one in member.settings["listeners"].split(",")
        )
        strangers = (ApiKey.VOTE, ApiKey.BROKER_HEARTBEAT, ApiKey.COMMIT_CATALOG, ApiKey.ENVELOPE)
        found.append(Place(broker[0], int(broker[1]), FORWARDED + strangers))
        ours = (*(api.key for api in served_on(ListenerType.CONTROLLER)), ApiKey.METADATA, ApiKey.LIST_GROUPS)
        found.append(Place(controller[0], int(controller[1]), ours))
    return found


def is_sound(data: bytes) -> bool:
    """Whether a frame can be read."""
    view = memoryview(bytearray(data))
    try:
        header = parse_request_header(view)
        if header.api_key == ApiKey.FETCH:
            parse_fetch(header.api_version, view, header.body, MAX_ELEMENTS)
        else:
            decode_request(header, view)
    except (MalformedMessage, UnsupportedRequest):
        return False
    return True


def is_apart(data: bytes, cluster_id: str) -> bool:
    """Whether a frame that can be read is left out, as what it says must be believed.

    Who says in the cluster's name that it leads an epoch which another one leads ends a node: two leaders in
    one epoch are no cluster. And a broker that is taken off the list is gone.
    """
    view = memoryview(bytearray(data))
    header = parse_request_header(view)
    if header.api_key == ApiKey.FETCH:
        return False
    request = decode_request(header, view)
    if header.api_key == ApiKey.ENVELOPE:
        return is_sound(bytes(request.request_data)) and is_apart(bytes(request.request_data), cluster_id)
    if header.api_key == ApiKey.UNREGISTER_BROKER:
        return request.broker_id in (1, 2, 3)
    if header.api_key in (ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH):
        told = [one for topic in request.topics for one in topic.partitions]
        is_ours = request.cluster_id in (None, cluster_id)
        return is_ours and any(one.leader_id >= 0 and one.leader_epoch > 0 for one in told)
    return False


def frames(keys: Sequence[int], likely: Likely, random: Random) -> Iterator[Frame]:
    """Without end: each API in each version in turn."""
    kinds = [
        (key, version) for key in keys for version in range(APIS[key].min_version, APIS[key].max_version + 1)
    ]
    while True:
        random.shuffle(kinds)
        for key, version in kinds:
            inside = likely
            if key == ApiKey.ENVELOPE:
                about = random.choice(FORWARDED)
                newest = APIS[about].max_version
                sound = request_frame(about, random.randint(APIS[about].min_version, newest), random, likely)
                inside = {**likely, "request_data": (damage(sound, random, 4),)}
            made = request_frame(key, version, random, inside)
            yield Frame(key, version, made)
            for _ in range(OF_EACH):
                yield Frame(key, version, damage(made, random, BEGIN))


async def send(
    place: Place, source: Iterator[Frame], seen: Counter[str], is_over: Callable[[], bool]
) -> None:
    """One frame after the other, each on a connection that has answered all before it."""
    writer: asyncio.StreamWriter | None = None
    while not is_over():
        frame = next(source)
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(place.host, place.port)
            writer.write(len(frame.data).to_bytes(4, "big") + frame.data)
            async with asyncio.timeout(PATIENCE_S):
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
        except TimeoutError:
            seen["waited"] += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            seen["closed"] += 1
        else:
            seen["answered"] += 1
            decode_response(frame.key, frame.version, memoryview(answer))
            continue
        if writer is not None:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            writer = None
    if writer is not None:
        writer.close()


async def fuzz(
    cluster: Cluster, count: int, likely: Likely, seed: str, *, is_readable: bool = True
) -> Counter[str]:
    """Send so many frames over all listeners, of which none can be read unless `is_readable`."""

    def is_sent(data: bytes) -> bool:
        return is_readable and not is_apart(data, cluster.plan.cluster_id) if is_sound(data) else True

    def is_over() -> bool:
        return seen.total() >= count or not all(one.is_running for one in cluster.members.values())

    seen: Counter[str] = Counter()
    tasks = []
    for n, place in enumerate(places(cluster)):
        for connection in range(CONNECTIONS):
            made = frames(place.keys, likely, Random(f"{seed}/{n}/{connection}/{is_readable}"))
            source = (one for one in made if is_sent(one.data))
            tasks.append(send(place, source, seen, is_over))
    await asyncio.gather(*tasks)
    return seen


def known(cluster: Cluster, topics: Sequence[str]) -> Likely:
    """What lets requests get further: names and numbers of this cluster, and some near them."""
    ids = (1, 2, 3, 4, 9)
    epochs = (-1, 0, 1, 2, 3)
    offsets = (0, 1, 10, 100, -1)
    return {
        "cluster_id": (cluster.plan.cluster_id,),
        "topic_name": ("__cluster_metadata",),
        "topic": (*topics, "__cluster_metadata"),
        "name": (*topics, "new-1", "new-2", "__cluster_metadata", "metadata.version", "CONTROLLER"),
        "resource_name": (*topics, "1", ""),
        "resource_type": (2, 4),
        "topic_id": (UUID("00000000-0000-0000-0000-000000000001"),),
        "request_principal": (b"\0\0\x05User\x0aANONYMOUS\0\0",),
        "client_host_address": (bytes(4), bytes(16)),
        "security_protocol": (0,),
        "host": ("127.0.0.1",),
        "port": (9,),
        **dict.fromkeys(("partition_index", "partition", "index", "partition_id"), (0, 1)),
        **dict.fromkeys(
            ("broker_id", "node_id", "replica_id", "voter_id", "candidate_id", "leader_id", "controller_id"),
            ids,
        ),
        **dict.fromkeys(("preferred_successors", "replicas", "new_isr", "broker_ids"), ids),
        **dict.fromkeys(
            (
                "replica_epoch",
                "candidate_epoch",
                "leader_epoch",
                "current_leader_epoch",
                "last_fetched_epoch",
            ),
            epochs,
        ),
        **dict.fromkeys(("last_epoch", "last_offset_epoch", "broker_epoch"), epochs),
        **dict.fromkeys(("fetch_offset", "last_offset", "position", "current_metadata_offset"), offsets),
        **dict.fromkeys(("num_partitions", "count"), (1, 2, 3, -1)),
        "replication_factor": (1, -1),
    }


def image_of(member: Member, end_offset: int) -> MetadataImage:
    """What its log says, replayed from the begin. Raises `CorruptionError` where that makes no sense."""
    delta = MetadataDelta(MetadataImage())
    for batch in decode_batches(member.committed(end_offset)):
        delta.replay_all(frame.record for frame in batch.frames)
    return delta.build(end_offset - 1, 1, 0)


@pytest.mark.timeout(300 + FRAMES // 100)
def test_damaged_frames_end_no_node_and_write_nothing_that_is_not_sound(tmp_path: Path) -> None:
    print(f"SEED={SEED} FUZZ_FRAMES={FRAMES}")
    quiet = {"metadata.max.idle.interval.ms": "0"}
    with Cluster(tmp_path, settings=quiet) as cluster:
        cluster.start()
        admin = Admin(cluster.bootstrap)
        topics = ["one", "two", "three"]
        for name in topics:
            admin.create(name, 2)
        likely = known(cluster, topics)
        mark = mark_of(cluster)

        unread = FRAMES // 4
        seen = rounds(cluster, unread, likely, is_readable=False)
        assert seen["closed"] > unread // 2
        # a busy machine may have had another one lead
        assert mark[1] != mark_of(cluster)[1] or mark == mark_of(cluster), "what cannot be read was written"
        seen = rounds(cluster, FRAMES - unread, likely)
        assert seen["answered"] > FRAMES // 8
        judge(cluster)


def rounds(cluster: Cluster, count: int, likely: Likely, *, is_readable: bool = True) -> Counter[str]:
    """As `fuzz`, a part after the other, and after each a look at the nodes."""
    members = cluster.members.values()
    first = {one.node_id: peak_rss_bytes(one.process.pid) for one in members}
    seen: Counter[str] = Counter()
    while seen.total() < count:
        began, most = time.monotonic(), min(ROUND, count - seen.total())
        found = asyncio.run(fuzz(cluster, most, likely, f"{SEED}/{seen.total()}", is_readable=is_readable))
        rate = found.total() / (time.monotonic() - began)
        seen += found
        assert [one.node_id for one in members if not one.is_running] == []
        grown = {one.node_id: peak_rss_bytes(one.process.pid) - first[one.node_id] for one in members}
        what = "any" if is_readable else "not to be read"
        told = ", ".join(f"{size >> 10}" for size in grown.values())
        print(f"{what}: {dict(seen)}; {rate:.0f} a second; the nodes have grown by {told} KiB", flush=True)
        for one in members:
            partitions = len(list(one.data.glob("*-*")))
            assert grown[one.node_id] < MOST_BYTES + partitions * PARTITION_BYTES, one.log()
    return seen


def mark_of(cluster: Cluster) -> tuple[int, int, int]:
    """Who leads, in which epoch, and the end of what is committed."""
    return cluster.members[cluster.leader()].quorum()[:3]


def judge(cluster: Cluster) -> None:
    """It goes on as it did, also after a new start; its log can be read, and is the same on all nodes."""
    members = cluster.members.values()
    places = [(one.node_id, one.bootstrap) for one in members]
    with Changes(places, 50, SEED) as changes:
        changes.wait_for_next(time.monotonic())
        changes.stop()
        # On a busy machine another one may lead meanwhile, by whose log it was done (`changes.judge`).
        done = {str(ErrorCode.topic_already_exists), str(ErrorCode.unknown_topic_or_partition)}
        assert {code for _, code in changes.refusals} <= done, changes.refusals
    end = cluster.members[cluster.leader()].quorum().high_watermark
    for one in members:
        wait_until(f"node {one.node_id} to have it", lambda one=one: len(one.committed(end)) > 0)  # type: ignore[misc]
        assert "Traceback" not in one.said(), one.log()
        assert " ERROR " not in one.said(), one.log()
    for one in members:
        one.kill()
    images = {one.node_id: image_of(one, end) for one in members}
    assert len({one.committed(end) for one in members}) == 1
    cluster.start()
    for one in members:
        wait_until("the topics", lambda one=one: one.topics() == set(images[one.node_id].topics_by_name))  # type: ignore[misc]
