"""Channels over real and simulated sockets: responses, versions, buffers, the pool of channels."""

from __future__ import annotations

import asyncio
import socket
import struct
from random import Random
from typing import Any

import pytest

from service.client.node_channel import Channel, Channels
from service.wire.api import ApiKey, RequestHeader, request_module, response_frame, response_module
from service.wire.errors import UnsupportedVersion
from service.wire.frames import frame
from simulator.loop import Loop
from simulator.network import Network
from simulator.process import Process
from simulator.trace import Trace
from tests.node.conftest import NodeThread
from tests.support.channels import BRISK, KEY, ask, run, talk
from tests.support.peers import Address, Peer, api_versions, peer, sound
from tests.support.waiting import until

# -- the ordinary way


def test_many_calls_are_in_flight_and_each_gets_its_own_answer() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def held(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == KEY:
                await gate.wait()
            return sound(header, request)

        async with talk(held) as (other, channel):
            calls = [asyncio.create_task(channel.call(KEY, 0, ask(number))) for number in range(100)]
            await until(lambda: channel.in_flight == BRISK.most_in_flight)
            gate.set()
            answers = await asyncio.gather(*calls)
            assert [one.producer_id_start for one in answers] == list(range(100))
            assert [request.broker_epoch for _, request in other.asked] == list(range(100))
            assert other.accepted == 1
            assert channel.metrics.calls == 101  # with ApiVersions

    run(scenario())


def test_the_newest_common_version_is_chosen_and_others_are_refused() -> None:
    async def scenario() -> None:
        keys = {ApiKey.API_VERSIONS: (0, 4), ApiKey.VOTE: (0, 1)}

        def old(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return bytes(response_frame(header, api_versions(keys)))
            module = response_module(ApiKey.VOTE)
            return bytes(response_frame(header, module.VoteResponse(error_code=0, topics=())))

        async with talk(old) as (other, channel):
            vote = request_module(ApiKey.VOTE).VoteRequest(cluster_id="c", voter_id=2, topics=())
            assert (await channel.call(ApiKey.VOTE, None, vote)).topics == ()
            with pytest.raises(UnsupportedVersion, match="version 2 of Vote, but 0 to 1"):
                await channel.call(ApiKey.VOTE, 2, vote)
            with pytest.raises(UnsupportedVersion, match="any version of AllocateProducerIds"):
                await channel.call(KEY, None, ask(1))
            assert await channel.versions() == {**keys, ApiKey.VOTE: (0, 1)}
            assert len(other.asked) == 1  # what is not served is not sent

    run(scenario())


def test_a_peer_older_than_our_api_versions_is_asked_again() -> None:
    """KIP-511: the refusal comes in version 0 and names the versions that there are."""

    async def scenario() -> None:
        def old(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS and header.api_version > 0:
                refusal = struct.pack(">ihi", header.correlation_id, 35, 1) + struct.pack(">hhh", 18, 0, 0)
                return bytes(frame(refusal))
            return sound(header, request)

        async with talk(old) as (_, channel):
            assert (await channel.call(KEY, 0, ask(5))).producer_id_start == 5

    run(scenario())


def test_a_real_node_is_a_peer(tmp_path: Any) -> None:
    node = NodeThread(tmp_path).start()
    try:

        async def scenario() -> None:
            channels = Channels(BRISK)
            asked = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=False
            )
            there = Address(node.host, node.port)
            answer = await channels.call(there, ApiKey.DESCRIBE_CLUSTER, 1, asked)
            assert [one.port for one in answer.brokers] == [node.port]
            with pytest.raises(UnsupportedVersion):  # brokers' listeners do not serve it
                await channels.call(there, ApiKey.VOTE, 2, None)
            await channels.close()

        run(scenario())
    finally:
        node.stop()


def test_an_api_that_the_listener_does_not_serve_costs_the_connection(tmp_path: Any) -> None:
    node = NodeThread(tmp_path).start()
    try:
        with socket.create_connection((node.host, node.port), 10) as raw:
            raw.sendall(frame(struct.pack(">hhih", ApiKey.ENVELOPE, 0, 1, -1) + bytes(4)))
            assert raw.recv(1) == b""
    finally:
        node.stop()


def snapshot(header: RequestHeader, request: Any) -> bytes | None:
    """Answer with as many bytes as requested, each of them the position."""
    if header.api_key != ApiKey.FETCH_SNAPSHOT:
        return sound(header, request)
    module = response_module(ApiKey.FETCH_SNAPSHOT)
    position = request.topics[0].partitions[0].position
    one = module.PartitionSnapshot(
        index=0,
        error_code=0,
        snapshot_id=module.SnapshotId(end_offset=1, epoch=1),
        current_leader=module.LeaderIdAndEpoch(leader_id=1, leader_epoch=1),
        size=10,
        position=0,
        unaligned_records=bytes([position]) * request.max_bytes,
    )
    topics = (module.TopicSnapshot(name="t", partitions=(one,)),)
    answer = module.FetchSnapshotResponse(throttle_time=0, error_code=0, topics=topics)
    return bytes(response_frame(header, answer))


async def ask_for_bytes(channel: Channel, position: int, count: int) -> Any:
    module = request_module(ApiKey.FETCH_SNAPSHOT)
    asked = module.PartitionSnapshot(
        partition=0,
        current_leader_epoch=1,
        snapshot_id=module.SnapshotId(end_offset=1, epoch=1),
        position=position,
    )
    request = module.FetchSnapshotRequest(
        replica_id=1, max_bytes=count, topics=(module.TopicSnapshot(name="t", partitions=(asked,)),)
    )
    answer = await channel.call(ApiKey.FETCH_SNAPSHOT, 1, request)
    return answer.topics[0].partitions[0].unaligned_records


def test_bytes_of_a_response_outlive_later_responses() -> None:
    """Bytes in an answer are views of the buffer, which is not written to while somebody has them."""

    async def scenario() -> None:
        random = Random(7)
        async with talk(snapshot) as (_, channel):
            held: list[tuple[int, int, Any]] = []
            for number in range(120):
                count = random.choice((1, 20_000, 100_000, 3_000_000))
                held.append((number, count, await ask_for_bytes(channel, number, count)))
                while len(held) > random.choice((0, 0, 1, 3)):
                    position, size, data = held.pop(0)
                    assert bytes(data) == bytes([position]) * size
                    del data

    run(scenario())


def test_released_responses_share_a_buffer() -> None:
    """Pages for each anew cost a follower as much as writing what is in them. An idle one keeps none."""

    async def scenario() -> None:
        async with talk(snapshot) as (_, channel):
            await ask_for_bytes(channel, 1, 3_000_000)
            assert channel._connection is not None
            buffer = channel._connection._spare
            assert buffer is not None
            for _ in range(5):
                await ask_for_bytes(channel, 1, 3_000_000)
                assert channel._connection._spare is buffer
            await ask_for_bytes(channel, 1, 1)
            assert channel._connection._spare is not buffer

    run(scenario())


def test_an_answer_with_many_elements_is_read_in_slices() -> None:
    async def scenario() -> None:
        module = response_module(ApiKey.COMMIT_CATALOG)
        results = tuple(number % 4 for number in range(5_000))

        def many(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return sound(header, request)
            return bytes(response_frame(header, module.CommitCatalogResponse(error_code=0, results=results)))

        async with talk(many) as (_, channel):
            asked = request_module(ApiKey.COMMIT_CATALOG).CommitCatalogRequest(broker_id=1, broker_epoch=1)
            assert (await channel.call(ApiKey.COMMIT_CATALOG, 0, asked)).results == results

    run(scenario())


# -- the pool


def test_an_address_has_one_channel_which_closes_when_idle() -> None:
    async def scenario() -> None:
        async with peer() as one, peer() as two:
            channels = Channels(BRISK._replace(idle_ms=100))
            for number in range(3):
                await channels.call(one.address, KEY, 0, ask(number))
                await channels.call(two.address, KEY, 0, ask(number))
            assert (len(channels), one.accepted, two.accepted) == (2, 1, 1)
            await until(lambda: len(channels) == 0)
            await channels.call(one.address, KEY, 0, ask(9))
            assert one.accepted == 2
            await channels.close()
            with pytest.raises(ConnectionAbortedError):
                await channels.call(one.address, KEY, 0, ask(9))

    run(scenario())


# -- the simulator's network


def test_channels_run_over_the_simulated_network() -> None:
    for seed in range(10):
        loop = Loop(Random(seed))
        Network(loop, Random(seed), Trace(loop.time))
        server, client = Process("server"), Process("client")

        async def ask_many() -> list[int]:
            channels = Channels(chance=Random(1).random)
            calls = [channels.call(Address("n1", 9092), KEY, 0, ask(number)) for number in range(50)]
            answers = await asyncio.gather(*calls)
            await channels.close()
            return [one.producer_id_start for one in answers]

        async def ask_refused() -> None:
            channels = Channels(chance=Random(1).random)
            with pytest.raises(ConnectionRefusedError):
                await channels.call(Address("n1", 9092), KEY, 0, ask(1))
            await channels.close()

        async def serve() -> None:
            await Peer().start("n1", 9092)

        async def main(loop: Loop = loop, server: Process = server, client: Process = client) -> list[int]:
            await client.run(lambda: loop.create_task(ask_refused()))
            await server.run(lambda: loop.create_task(serve()))
            got: list[int] = await client.run(lambda: loop.create_task(ask_many()))
            await asyncio.sleep(1)  # the server sees them go
            return got

        assert loop.run_until_complete(main()) == list(range(50))
        loop.close()
