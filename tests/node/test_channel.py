"""Channels over real sockets: order, deadlines, back-off, ends, and peers that break the protocol."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest

from service.client.node_channel import Channel, ChannelOptions, Channels, PeerFailed, is_refused, was_sent
from service.controller_server.broker_prober import BrokerProber, probe_connect
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.image import BrokerImage, EndpointImage
from service.wire.api import ApiKey, RequestHeader, request_module, response_frame, response_module
from service.wire.errors import UnsupportedVersion
from service.wire.frames import frame
from simulator.loop import Loop
from simulator.network import Network
from simulator.process import Process
from simulator.trace import Trace
from tests.node.conftest import NodeThread
from tests.support.peers import Address, Behave, Peer, allocated, api_versions, peer, sound
from tests.support.waiting import until

KEY = ApiKey.ALLOCATE_PRODUCER_IDS
BRISK = ChannelOptions(request_timeout_ms=5_000, connect_timeout_ms=5_000, backoff_ms=10, backoff_max_ms=40)


def ask(number: int) -> Any:
    return request_module(KEY).AllocateProducerIdsRequest(broker_id=1, broker_epoch=number)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


@asynccontextmanager
async def talk(
    behave: Behave = sound, options: ChannelOptions = BRISK
) -> AsyncIterator[tuple[Peer, Channel]]:
    async with peer(behave) as other:
        channel = Channel(other.address, options)
        try:
            yield other, channel
        finally:
            await channel.close()
            assert channel._budget.left_bytes == options.memory_bytes


def answering(data: bytes | None, first: Behave = sound) -> Behave:
    """Sound, but for what is answered to our request."""
    return lambda header, request: first(header, request) if header.api_key == ApiKey.API_VERSIONS else data


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


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
    """As many bytes as are asked for, each of them what the position is."""
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


def test_what_an_answer_brings_outlives_those_behind_it() -> None:
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


def test_answers_that_are_let_go_share_a_buffer() -> None:
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


# -- refused, lost, late


def test_nobody_listening_is_told_from_everything_else() -> None:
    async def scenario() -> None:
        channel = Channel(Address("127.0.0.1", free_port()), BRISK)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await channel.call(KEY, 0, ask(1))
        assert (channel.metrics.refused, channel.metrics.connected) == (3, 0)
        await channel.close()

    run(scenario())


@pytest.mark.parametrize("host", ["no..host", "x" * 64, "a\0b"])
def test_a_name_that_no_host_can_have_is_not_reached(host: str) -> None:
    """A broker registers with whatever name it likes; who follows it, or looks after it, goes on."""

    async def scenario() -> None:
        channel = Channel(Address(host, 9), BRISK)
        with pytest.raises(ConnectionError, match="no host has the name") as refused:
            await channel.call(KEY, 0, ask(1))
        assert not was_sent(refused.value)
        await channel.close()
        assert await probe_connect(Address(host, 9)) is ProbeOutcome.UNKNOWN

    run(scenario())


def test_a_connection_that_the_peer_ends_is_told_and_one_that_this_side_ends_is_not() -> None:
    async def scenario() -> None:
        lost: list[int] = []
        async with peer(sound) as other:
            channels = Channels(BRISK, on_lost=lambda: lost.append(1))
            await channels.call(other.address, KEY, 0, ask(1))
            channels.disconnect(other.address, "as we like")
            await channels.call(other.address, KEY, 0, ask(1))
            assert lost == []
        await until(lambda: lost == [1])
        await channels.close()
        assert lost == [1]

    run(scenario())


def registered(epoch: int, port: int, host: str = "127.0.0.1") -> BrokerImage:
    """Broker 4, unfenced, with a listener that only others reach beside that of other nodes."""
    endpoints = (EndpointImage("OUT", "127.0.0.1", 1, 0), EndpointImage("IN", host, port, 0))
    return BrokerImage(4, epoch, UUID(int=4), endpoints, (), None, False, False, ())


def test_a_refusal_counts_at_an_address_that_was_open_in_this_broker_epoch() -> None:
    async def scenario() -> None:
        prober = BrokerProber("IN", 1, lambda: 0.5)
        async with peer(sound) as other:
            port = other.address.port
            says = f"its address 127.0.0.1:{port} (listener IN)"
            assert await prober.probe(registered(7, port)) == (ProbeOutcome.OPEN, says)
        assert await prober.probe(registered(7, port)) == (ProbeOutcome.REFUSED, says)
        assert await prober.probe(registered(8, port)) == (ProbeOutcome.UNKNOWN, says), "another process"
        absent = BrokerProber("NAMED_OTHERWISE", 1, lambda: 0.5)
        assert (await absent.probe(registered(7, port)))[0] is ProbeOutcome.UNKNOWN

    run(scenario())


@asynccontextmanager
async def names(stand_for: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Names of hosts, and the addresses that they have, in this order."""
    loop = asyncio.get_running_loop()
    original = loop.getaddrinfo

    async def looked_up(host: Any, port: Any, **options: Any) -> list[Any]:
        found = [await original(one, port, **options) for one in stand_for.get(host, [host])]
        return [one for several in found for one in several]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "getaddrinfo", looked_up)
        yield


def test_a_refusal_counts_at_the_address_that_was_open_of_a_name_with_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `localhost` has two; one of them was never open, or the name stands for others by now."""

    async def scenario() -> None:
        stand_for = {"broker.test": ["127.0.0.2", "127.0.0.1"]}
        prober = BrokerProber("IN", 1, lambda: 0.5)
        async with names(stand_for, monkeypatch):
            async with peer(sound) as other:
                named = registered(7, other.address.port, host="broker.test")
                assert (await prober.probe(named))[0] is ProbeOutcome.OPEN
            assert (await prober.probe(named))[0] is ProbeOutcome.REFUSED
            stand_for["broker.test"] = ["127.0.0.2"]
            assert (await prober.probe(named))[0] is ProbeOutcome.UNKNOWN, "it may live elsewhere"
            stand_for["broker.test"] = ["127.0.0.1", "127.0.0.2"]
            server = await asyncio.start_server(
                lambda reader, writer: writer.close(), "127.0.0.2", other.address.port
            )
            assert (await prober.probe(named))[0] is ProbeOutcome.OPEN, "one of its addresses is"
            server.close()
            await server.wait_closed()

    run(scenario())


def test_a_refusal_is_told_no_sooner_than_the_open_address_answered() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        prober = BrokerProber("IN", 1, lambda: 0.5)
        async with peer(sound) as other:
            distant = registered(7, other.address.port)
            await prober.probe(distant)
        prober._open[4] = prober._open[4]._replace(took_s=0.3)
        began_s = loop.time()
        assert (await prober.probe(distant))[0] is ProbeOutcome.REFUSED
        assert loop.time() - began_s >= 0.29

    run(scenario())


def test_refusals_of_a_broker_that_was_heard_count_once_it_was_found_open_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        prober = BrokerProber("IN", 1, lambda: 0.5)
        async with peer(sound) as other:
            port = other.address.port
            await prober.probe(registered(7, port))
        prober.distrust(4, 6)
        assert (await prober.probe(registered(7, port)))[0] is ProbeOutcome.REFUSED, "another process"
        prober.distrust(4, 7)
        assert "broker 4 of epoch 7: its address on listener IN refused connections while" in caplog.text
        assert (await prober.probe(registered(7, port)))[0] is ProbeOutcome.UNKNOWN
        prober.published({4: registered(7, port)})
        running = asyncio.ensure_future(prober.run())
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        await until(lambda: 4 in prober._open)
        server.close()
        await server.wait_closed()
        assert (await prober.probe(registered(7, port)))[0] is ProbeOutcome.REFUSED
        running.cancel()

    run(scenario())


def test_each_broker_is_probed_once_it_is_unfenced_until_it_is_found_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        caplog.set_level(logging.INFO)
        prober = BrokerProber("IN", 1, lambda: 0.5)
        running = asyncio.ensure_future(prober.run())
        port = free_port()
        prober.published({4: registered(7, port)})
        await until(lambda: "broker 4 of epoch 7" in caplog.text)
        assert f"its address 127.0.0.1:{port} (listener IN) is not open to this controller" in caplog.text
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        prober.published({4: registered(7, port)})
        await until(lambda: 4 in prober._open and prober._open[4].epoch == 7)
        server.close()
        await server.wait_closed()
        assert (await prober.probe(registered(7, port)))[0] is ProbeOutcome.REFUSED
        prober.published({})
        assert prober._open == {}, "a broker that is gone is forgotten"
        running.cancel()

    run(scenario())


def test_a_name_of_which_every_address_refusesis_refused() -> None:
    """asyncio tells of several addresses in one error without a number."""
    both = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed"
    )
    assert is_refused(both)
    assert not is_refused(OSError("Multiple exceptions: [Errno 111] no, [Errno 101] unreachable"))
    assert not is_refused(OSError(113, "no route"))
    assert not is_refused(OSError("odd"))

    async def scenario() -> None:
        channel = Channel(Address("localhost", free_port()), BRISK)
        with pytest.raises(ConnectionRefusedError):
            await channel.call(KEY, 0, ask(1))
        await channel.close()

    run(scenario())


def test_three_tries_fit_into_a_third_of_a_second_and_then_they_are_fewer() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        Network(loop, Random(1), Trace(loop.time))  # type: ignore[arg-type]
        channel = Channel(Address("n1", 9092))
        began, times = loop.time(), []
        for _ in range(8):
            with pytest.raises(ConnectionRefusedError):
                await channel.call(KEY, 0, ask(1))
            times.append(loop.time() - began)
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert times[2] < 0.3
        assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1], abs=0.001)
        await channel.close()

    loop = Loop(Random(1))
    loop.run_until_complete(loop.create_task(scenario(), context=Process("client").context()))
    loop.close()


def test_calls_that_wait_for_one_connection_share_how_it_ends() -> None:
    async def scenario() -> None:
        channel = Channel(Address("127.0.0.1", free_port()), BRISK)
        calls = [channel.call(KEY, 0, ask(number)) for number in range(10)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, ConnectionRefusedError) for one in errors)
        assert channel.metrics.refused == 1
        assert len(set(map(id, errors))) == 10
        await channel.close()

    run(scenario())


def test_a_peer_that_comes_back_is_found_again() -> None:
    async def scenario() -> None:
        async with talk() as (other, channel):
            assert (await channel.call(KEY, 0, ask(1))).producer_id_start == 1
            await other.stop()
            await until(lambda: channel._connection is None)
            with pytest.raises(ConnectionRefusedError):
                await channel.call(KEY, 0, ask(2))
            await other.start(port=other.address.port)
            assert (await channel.call(KEY, 0, ask(3))).producer_id_start == 3

    run(scenario())


def test_what_is_in_flight_when_the_connection_ends_fails_and_is_not_sent_again() -> None:
    async def scenario() -> None:
        async with talk(answering(None)) as (other, channel):
            calls = [asyncio.create_task(channel.call(KEY, 0, ask(number))) for number in range(5)]
            await until(lambda: len(other.asked) == 5)
            other.drop()
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(one) for one in errors] == [ConnectionResetError] * 5
            assert len(other.asked) == 5
            assert channel.metrics.lost == 1

    run(scenario())


def test_closing_fails_what_is_in_flight_and_what_waits() -> None:
    async def scenario() -> None:
        async with talk(answering(None)) as (other, channel):
            sent = asyncio.create_task(channel.call(KEY, 0, ask(1)))
            await until(lambda: other.asked)
            await channel.close()
            with pytest.raises(ConnectionAbortedError):
                await sent
            with pytest.raises(ConnectionAbortedError):
                await channel.call(KEY, 0, ask(2))
        refused = Channel(
            Address("127.0.0.1", free_port()), BRISK._replace(backoff_ms=5_000, backoff_max_ms=5_000)
        )
        with pytest.raises(ConnectionRefusedError):
            await refused.call(KEY, 0, ask(1))
        waiting = asyncio.create_task(refused.call(KEY, 0, ask(2)))
        await asyncio.sleep(0.01)
        await refused.close()
        with pytest.raises(ConnectionAbortedError):
            await waiting

    run(scenario())


def test_a_request_that_is_not_answered_costs_its_deadline_and_the_connection() -> None:
    async def scenario() -> None:
        async with talk(answering(None)) as (other, channel):
            patient = asyncio.create_task(channel.call(KEY, 0, ask(1)))
            await until(lambda: channel.in_flight == 1)
            with pytest.raises(TimeoutError):
                await channel.call(KEY, 0, ask(2), timeout_ms=50)
            with pytest.raises(ConnectionResetError, match="did not answer"):
                await patient
            other.behave = sound
            assert (await channel.call(KEY, 0, ask(3))).producer_id_start == 3

    run(scenario())


def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def held(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == KEY:
                await gate.wait()
            return sound(header, request)

        async with talk(held) as (_, channel):
            gone = [asyncio.create_task(channel.call(KEY, 0, ask(number))) for number in range(200)]
            await until(lambda: channel.in_flight == BRISK.most_in_flight)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            assert channel.in_flight == BRISK.most_in_flight  # their answers are still to come
            stays = asyncio.create_task(channel.call(KEY, 0, ask(777)))
            await asyncio.sleep(0.01)
            gate.set()
            assert (await stays).producer_id_start == 777

    run(scenario())


def test_more_calls_than_may_wait_fail_at_once() -> None:
    async def scenario() -> None:
        async with talk(answering(None), BRISK._replace(most_waiting=3)) as (_, channel):
            calls = [asyncio.create_task(channel.call(KEY, 0, ask(number))) for number in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(ConnectionError, match="3 calls are waiting"):
                await channel.call(KEY, 0, ask(4))
            for call in calls:
                call.cancel()

    run(scenario())


def test_a_peer_that_does_not_read_holds_up_its_own_callers_alone() -> None:
    async def scenario() -> None:
        deaf = asyncio.Event()

        async def stuck(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == KEY:
                await deaf.wait()
            return sound(header, request)

        options = BRISK._replace(request_timeout_ms=500, most_in_flight=1000)
        async with talk(stuck, options) as (_, channel):
            module = request_module(ApiKey.ENVELOPE)
            big = module.EnvelopeRequest(
                request_data=bytes(1 << 20), request_principal=None, client_host_address=b""
            )
            first = asyncio.create_task(channel.call(KEY, 0, ask(1)))
            calls = [asyncio.create_task(channel.call(ApiKey.ENVELOPE, 0, big)) for _ in range(60)]
            await asyncio.sleep(0.1)
            assert channel.in_flight < 30  # the others are not even encoded
            errors = await asyncio.gather(first, *calls, return_exceptions=True)
            assert all(isinstance(one, TimeoutError | ConnectionResetError) for one in errors)
            deaf.set()

    run(scenario())


# -- garbage

HEAD = struct.pack(">i", 2)  # the correlation id of the first request after ApiVersions
HOSTILE = {
    "negative size": struct.pack(">i", -5),
    "huge size": struct.pack(">i", (100 << 20) + 1),
    "nothing": frame(b""),
    "too short for a correlation id": frame(b"\0\0"),
    "another correlation id": frame(struct.pack(">i", 77) + bytes(40)),
    "no body": frame(HEAD),
    "cut body": frame(HEAD + bytes(5)),
    "endless tags": frame(HEAD + b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "an answer and bytes behind it": None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_garbage_costs_the_connection_and_is_told_by_name(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        data = HOSTILE[kind]

        def hostile(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return sound(header, request)
            good = bytes(response_frame(header, allocated(1)))
            return good + frame(b"more") if data is None else data

        async with talk(hostile) as (other, channel):
            if data is not None:
                with pytest.raises(PeerFailed, match="garbage"):
                    await channel.call(KEY, 0, ask(1))
            else:
                assert (await channel.call(KEY, 0, ask(1))).producer_id_start == 1
                await until(lambda: channel._connection is None)
            assert channel.metrics.garbage == 1
            other.behave = sound
            assert (await channel.call(KEY, 0, ask(9))).producer_id_start == 9

    run(scenario())
    assert any("garbage" in one.message for one in caplog.records)


def test_a_size_that_is_a_lie_costs_no_memory() -> None:
    async def scenario() -> None:
        async with talk(answering(struct.pack(">i", 90 << 20) + HEAD), BRISK) as (_, channel):
            call = asyncio.create_task(channel.call(KEY, 0, ask(1), timeout_ms=200))
            await until(lambda: channel._connection is not None and channel._connection._end == 8)
            assert channel._connection is not None
            assert len(channel._connection._buffer) < 64 << 10
            with pytest.raises(TimeoutError):
                await call

    run(scenario())


def test_answers_of_all_peers_share_one_budget() -> None:
    async def scenario() -> None:
        body = HEAD + bytes(3 << 20)
        options = BRISK._replace(memory_bytes=1 << 20)
        async with peer(answering(frame(body))) as other:
            channels = Channels(options)
            with pytest.raises(PeerFailed, match="no memory"):
                await channels.call(other.address, KEY, 0, ask(1))
            assert channels._budget.left_bytes == options.memory_bytes
            await channels.close()

    run(scenario())


def test_a_byte_at_a_time_is_an_answer_if_it_is_there_in_time() -> None:
    async def scenario() -> None:
        async def slow(header: RequestHeader, request: Any) -> bytes | None:
            data = sound(header, request) or b""
            if header.api_key == ApiKey.API_VERSIONS:
                return data
            writer = other._writers[-1]
            for at in range(len(data)):
                writer.write(data[at : at + 1])
                await writer.drain()
                await asyncio.sleep(pause_s)
            return None

        pause_s = 0.001
        async with talk(slow) as (other, channel):
            assert (await channel.call(KEY, 0, ask(4))).producer_id_start == 4
            pause_s = 0.1
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await channel.call(KEY, 0, ask(4), timeout_ms=300)
            assert time.monotonic() - began < 2

    run(scenario())


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(bytes(6)), None])
def test_who_does_not_negotiate_is_no_peer(greeting: bytes | None) -> None:
    """Silence, another protocol, half an answer, and a connection that is closed at once."""

    async def scenario() -> None:
        def odd(header: RequestHeader, request: Any) -> bytes | None:
            if greeting is None:
                other.drop()
            return greeting

        async with talk(odd, BRISK._replace(connect_timeout_ms=200)) as (other, channel):
            with pytest.raises(TimeoutError if greeting == b"" else ConnectionError) as caught:
                await channel.call(KEY, 0, ask(1))
            assert not isinstance(caught.value, ConnectionRefusedError)
            assert channel._connection is None

    run(scenario())


def test_random_bytes_never_break_a_channel() -> None:
    async def scenario() -> None:
        random = Random(14)
        good = bytes(response_frame(RequestHeader(KEY, 0, 2, "", 0), allocated(1)))

        def damaged(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return sound(header, request)
            data = bytearray(good)
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.randrange(256)
            return bytes(data)

        options = BRISK._replace(backoff_ms=0, backoff_max_ms=0)
        async with talk(damaged, options) as (other, channel):
            for _ in range(150):
                try:
                    await channel.call(KEY, 0, ask(1), timeout_ms=20)
                except OSError:
                    channel.disconnect("for the next one")
                else:
                    channel.disconnect("for the next one")
            other.behave = sound
            assert (await channel.call(KEY, 0, ask(3))).producer_id_start == 3

    run(scenario())


# -- the pool


def test_channels_are_one_per_address_and_close_when_nobody_uses_them() -> None:
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
