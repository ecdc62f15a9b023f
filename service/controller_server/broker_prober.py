"""Probes of brokers' addresses: whether anybody listens there, and where somebody once did.

A refusal proves that nobody listens only at an address that was open before. An advertised address may be
good for other hosts alone (NAT, a firewall that rejects, a service whose pods are not ready): it refuses this
controller while the broker lives. So every controller, active or not, probes each broker once it is unfenced,
until it has found the address open in this broker epoch. What counts is the address of the network that was
open, not the name: a name may stand for several of them, and for others later. A refusal is told no sooner
than the open address answered: a firewall or a proxy beside the controller refuses at once, while a living
broker takes some round trips to be heard again. A broker that was heard after its address had refused is
distrusted: it counts as never found open. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from service.base.backoff import backoff
from service.client.node_channel import Reachable, is_refused
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.image import BrokerImage

_log = logging.getLogger(__name__)

_PROBE_S: Final = 1.0
_AT_ONCE: Final = 32
_RETRY_MS: Final = 1_000
_RETRY_MAX_MS: Final = 60_000


class Found(NamedTuple):
    """An address of the network that was open, in one broker epoch."""

    epoch: int
    address: str
    took_s: float
    """until it took the connection"""


async def knock(place: Reachable) -> ProbeOutcome:
    """Return whether anybody listens there. Only a refusal can prove that nobody does."""
    outcome, _ = await _connect(place.host, place.port)
    return outcome


async def _connect(host: str, port: int) -> tuple[ProbeOutcome, str]:
    """Connect; return what came of it, and where the connection led."""
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as e:
        return ProbeOutcome.REFUSED if is_refused(e) else ProbeOutcome.UNKNOWN, ""
    except ValueError:  # a name that no host can have
        return ProbeOutcome.UNKNOWN, ""
    address = str(writer.get_extra_info("peername")[0])
    writer.close()
    return ProbeOutcome.OPEN, address


async def _stands_for(host: str, address: str) -> bool:
    """Return whether an address is among those of a host."""
    try:
        async with asyncio.timeout(_PROBE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return any(one[4][0] == address for one in found)


class BrokerProber:
    """Probes brokers where other nodes reach them, at `listener`. `node_id` is this process's own broker."""

    def __init__(self, listener: str, node_id: int, chance: Callable[[], float]) -> None:
        self._listener = listener
        self._node_id = node_id
        self._chance = chance
        self._brokers: Mapping[int, BrokerImage] = {}
        self._open: dict[int, Found] = {}
        """by broker: where it was found open"""
        self._told: dict[int, int] = {}
        """by broker: the epoch in which it was logged that its address is not open"""
        self._news = asyncio.Event()

    async def probe(self, broker: BrokerImage) -> tuple[ProbeOutcome, str]:
        """Return whether somebody listens at the broker's address, and the address in words. Refused: it was
        open before in this broker epoch, and is not now."""
        place = next((one for one in broker.endpoints if one.name == self._listener), None)
        if place is None:
            return ProbeOutcome.UNKNOWN, f"no listener {self._listener}"
        address = f"its address {place.host}:{place.port} (listener {place.name})"
        loop = asyncio.get_running_loop()
        found, began_s = self._found(broker), loop.time()
        if found is None:
            outcome, at = await _connect(place.host, place.port)
            outcome = ProbeOutcome.UNKNOWN if outcome is ProbeOutcome.REFUSED else outcome
        else:
            outcome, at = await self._again(place, found)
        took_s = loop.time() - began_s
        if outcome is ProbeOutcome.OPEN:
            self._open[broker.id] = Found(broker.epoch, at, took_s)
        elif outcome is ProbeOutcome.REFUSED and found is not None:
            await asyncio.sleep(found.took_s - took_s)
        return outcome, address

    async def _again(self, place: Reachable, found: Found) -> tuple[ProbeOutcome, str]:
        """Try the address that was open, and the others of its host where that one refuses."""
        outcome, at = await _connect(found.address, place.port)
        if outcome is not ProbeOutcome.REFUSED or place.host == found.address:
            return outcome, at
        if not await _stands_for(place.host, found.address):
            return ProbeOutcome.UNKNOWN, ""
        elsewhere, at = await _connect(place.host, place.port)
        return (elsewhere, at) if elsewhere is ProbeOutcome.OPEN else (outcome, "")

    def distrust(self, broker_id: int, broker_epoch: int) -> None:
        """The broker was heard after its address had refused: refusals there prove nothing until it is found
        open again."""
        found = self._open.get(broker_id)
        if found is None or found.epoch != broker_epoch:
            return
        del self._open[broker_id]
        self._told[broker_id] = broker_epoch
        self._news.set()
        _log.warning(
            "broker %d of epoch %d: its address on listener %s refused connections while the broker sent "
            "heartbeats: refusals do not count until this controller finds it open again, and the broker is "
            "fenced only once its session is over",
            broker_id,
            broker_epoch,
            self._listener,
        )

    def _found(self, broker: BrokerImage) -> Found | None:
        found = self._open.get(broker.id)
        return found if found is not None and found.epoch == broker.epoch else None

    def published(self, brokers: Mapping[int, BrokerImage]) -> None:
        """The brokers as committed."""
        self._brokers = brokers
        known: dict[int, Any]
        for known in (self._open, self._told):
            for gone in [one for one in known if one not in brokers]:
                del known[gone]
        self._news.set()

    async def run(self) -> None:
        """Find out for ever which brokers' addresses are open."""
        failures = 0
        while True:
            self._news.clear()
            unknown = self._unknown()
            for first in range(0, len(unknown), _AT_ONCE):
                await asyncio.gather(*map(self._look, unknown[first : first + _AT_ONCE]))
            if self._news.is_set():
                failures = 0
                continue
            failures += 1
            try:
                async with asyncio.timeout(self._pause_s(failures)):
                    await self._news.wait()
            except TimeoutError:
                continue
            failures = 0

    def _pause_s(self, failures: int) -> float | None:
        """Return how long to wait for news of brokers; None: nothing else is to be done."""
        if not self._unknown():
            return None
        uniform = self._chance()
        return backoff(failures, first=_RETRY_MS, longest=_RETRY_MAX_MS, jitter=0.2, uniform=uniform) / 1000

    def _unknown(self) -> list[BrokerImage]:
        return [
            one
            for one in self._brokers.values()
            if not one.fenced and one.id != self._node_id and self._found(one) is None
        ]

    async def _look(self, broker: BrokerImage) -> None:
        outcome, address = await self.probe(broker)
        if outcome is ProbeOutcome.OPEN or self._told.get(broker.id) == broker.epoch:
            return
        self._told[broker.id] = broker.epoch
        _log.info(
            "broker %d of epoch %d: %s is not open to this controller: the broker is fenced only once its "
            "session is over; for a faster fail-over let controllers connect there",
            broker.id,
            broker.epoch,
            address,
        )
