"""A channel whose peer refuses, disconnects, is late or does not read."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from service.client.node_channel import Channel, Channels, is_refused, was_sent
from service.controller_server.broker_prober import probe_connect
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.wire.api import ApiKey, RequestHeader, request_module
from simulator.loop import Loop
from simulator.network import Network
from simulator.process import Process
from simulator.trace import Trace
from tests.support.channels import BRISK, KEY, answering, ask, free_port, run, talk
from tests.support.peers import Address, peer, sound
from tests.support.waiting import until


def test_a_refused_connection_is_told_from_other_failures() -> None:
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


def test_a_name_whose_addresses_all_refuse_is_refused() -> None:
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


def test_calls_in_flight_fail_with_the_connection_and_are_not_resent() -> None:
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


def test_requests_whose_time_ends_together_are_all_told_so() -> None:
    async def scenario() -> None:
        async with talk(answering(None)) as (_, channel):
            await channel.versions()
            calls = [asyncio.create_task(channel.call(KEY, 0, ask(one), timeout_ms=100)) for one in range(3)]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, TimeoutError)
                assert "no answer to AllocateProducerIds in time" in str(error)

    run(scenario())


def test_a_request_that_finds_no_room_in_time_was_not_sent() -> None:
    async def scenario() -> None:
        async with talk(answering(None), BRISK._replace(most_in_flight=1)) as (_, channel):
            first = asyncio.create_task(channel.call(KEY, 0, ask(1)))
            await until(lambda: channel.in_flight == 1)
            with pytest.raises(TimeoutError, match="nothing within 50 ms") as late:
                await channel.call(KEY, 0, ask(2), timeout_ms=50)
            assert not was_sent(late.value)
            first.cancel()

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
