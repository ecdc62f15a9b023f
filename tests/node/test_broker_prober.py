"""Probes of a broker's address by the controller: when a refused connection counts."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest

from service.controller_server.broker_prober import BrokerProber
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.image import BrokerImage, EndpointImage
from tests.support.channels import free_port, names, run
from tests.support.peers import peer, sound
from tests.support.waiting import until


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
