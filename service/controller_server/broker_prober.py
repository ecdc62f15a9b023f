"""Probes of brokers' addresses: a refused connection proves that a broker is down if its address was open.

An advertised address may be reachable from other hosts alone (NAT, a firewall that rejects, a service whose
pods are not ready): it refuses this controller while the broker lives. So every controller, active or not,
probes each unfenced broker until it has found the address open in this broker epoch. The IP address that was
open counts, not the host name: a name may resolve to several addresses, and to others later.

A refusal is reported no sooner than the open address had accepted: a firewall or a proxy beside the
controller refuses at once, while the next heartbeat of a living broker takes some round trips. A broker that
sends a heartbeat after its address refused is distrusted: it counts as never found open. Owned by the event
loop.
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
    """IP address at which a broker was found open, in one broker epoch."""

    epoch: int
    address: str
    took_s: float
    """seconds until it accepted the connection"""


async def probe_connect(place: Reachable) -> ProbeOutcome:
    """Try to connect. Only `ProbeOutcome.REFUSED` proves that no process listens there."""
    outcome, _ = await _connect(place.host, place.port)
    return outcome


async def _connect(host: str, port: int) -> tuple[ProbeOutcome, str]:
    """Try to connect; return the outcome and the IP address of the connection, "" without one."""
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as e:
        return ProbeOutcome.REFUSED if is_refused(e) else ProbeOutcome.UNKNOWN, ""
    except ValueError:  # an invalid host name
        return ProbeOutcome.UNKNOWN, ""
    address = str(writer.get_extra_info("peername")[0])
    writer.close()
    return ProbeOutcome.OPEN, address


async def _resolves_to(host: str, address: str) -> bool:
    """Return whether `host` resolves to `address`, among others."""
    try:
        async with asyncio.timeout(_PROBE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return any(one[4][0] == address for one in found)


class BrokerProber:
    """Probes brokers at their listener for other nodes, `listener`. `node_id`: this process's own broker."""

    def __init__(self, listener: str, node_id: int, chance: Callable[[], float]) -> None:
        self._listener = listener
        self._node_id = node_id
        self._chance = chance
        self._brokers: Mapping[int, BrokerImage] = {}
        self._open: dict[int, Found] = {}
        """address that was found open, by broker"""
        self._logged: dict[int, int] = {}
        """broker epoch in which it was logged that the address is not open, by broker"""
        self._news = asyncio.Event()

    async def probe(self, broker: BrokerImage) -> tuple[ProbeOutcome, str]:
        """Try to connect to the broker; return the outcome and a description of its address.

        `ProbeOutcome.REFUSED`: the address was open before in this broker epoch, and is not now."""
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
            outcome, at = await self._probe_found(place, found)
        took_s = loop.time() - began_s
        if outcome is ProbeOutcome.OPEN:
            self._open[broker.id] = Found(broker.epoch, at, took_s)
        elif outcome is ProbeOutcome.REFUSED and found is not None:
            await asyncio.sleep(found.took_s - took_s)
        return outcome, address

    async def _probe_found(self, place: Reachable, found: Found) -> tuple[ProbeOutcome, str]:
        """Try the address that was open; if it refuses, try the other addresses of its host."""
        outcome, at = await _connect(found.address, place.port)
        if outcome is not ProbeOutcome.REFUSED or place.host == found.address:
            return outcome, at
        if not await _resolves_to(place.host, found.address):
            return ProbeOutcome.UNKNOWN, ""
        elsewhere, at = await _connect(place.host, place.port)
        return (elsewhere, at) if elsewhere is ProbeOutcome.OPEN else (outcome, "")

    def distrust(self, broker_id: int, broker_epoch: int) -> None:
        """Ignore refusals of the broker's address until it is found open again.

        Called when the broker sent a heartbeat after its address had refused."""
        found = self._open.get(broker_id)
        if found is None or found.epoch != broker_epoch:
            return
        del self._open[broker_id]
        self._logged[broker_id] = broker_epoch
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
        """Take the committed brokers, and forget those that are no longer registered."""
        self._brokers = brokers
        known: dict[int, Any]
        for known in (self._open, self._logged):
            for gone in [one for one in known if one not in brokers]:
                del known[gone]
        self._news.set()

    async def run(self) -> None:
        """Probe unfenced brokers until their addresses are open; runs until it is cancelled."""
        failures = 0
        while True:
            self._news.clear()
            unknown = self._unknown()
            for first in range(0, len(unknown), _AT_ONCE):
                await asyncio.gather(*map(self._probe_and_log, unknown[first : first + _AT_ONCE]))
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
        """Return how long to wait for news of brokers; None for ever: no address is left to probe."""
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

    async def _probe_and_log(self, broker: BrokerImage) -> None:
        outcome, address = await self.probe(broker)
        if outcome is ProbeOutcome.OPEN or self._logged.get(broker.id) == broker.epoch:
            return
        self._logged[broker.id] = broker.epoch
        _log.info(
            "broker %d of epoch %d: %s is not open to this controller: the broker is fenced only once its "
            "session is over; for a faster fail-over let controllers connect there",
            broker.id,
            broker.epoch,
            address,
        )
