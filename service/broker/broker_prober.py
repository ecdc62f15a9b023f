"""Probes of brokers' addresses: whether anybody listens there, and where somebody once did.

A refusal proves that nobody listens only at an address that was open before. An advertised address may be
good for other hosts alone (NAT, a firewall that rejects, a service whose pods are not ready): it refuses this
controller while the broker lives. So every controller, active or not, probes each broker once it is unfenced,
until it has found the address open in this broker epoch. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from service.base.backoff import backoff
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.image import BrokerImage
from service.network.channel import Reachable

_log = logging.getLogger(__name__)

_PROBE_S: Final = 1.0
_AT_ONCE: Final = 32
_RETRY_MS: Final = 1_000
_RETRY_MAX_MS: Final = 60_000


async def knock(place: Reachable) -> ProbeOutcome:
    """Whether anybody listens there. Only a refusal can prove that nobody does."""
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(place.host, place.port)
    except ConnectionRefusedError:
        return ProbeOutcome.REFUSED
    except (OSError, ValueError):  # a time-out is the one, a name that no host can have the other
        return ProbeOutcome.UNKNOWN
    writer.close()
    return ProbeOutcome.OPEN


class BrokerProber:
    """Probes brokers where other nodes reach them, at `listener`. `node_id` is this process's own broker."""

    def __init__(self, listener: str, node_id: int, chance: Callable[[], float]) -> None:
        self._listener = listener
        self._node_id = node_id
        self._chance = chance
        self._brokers: Mapping[int, BrokerImage] = {}
        self._open: dict[int, int] = {}
        """by broker: the epoch in which its address was found open"""
        self._told: dict[int, int] = {}
        """by broker: the epoch in which it was logged that its address is not open"""
        self._news = asyncio.Event()

    async def probe(self, broker: BrokerImage) -> tuple[ProbeOutcome, str]:
        """Whether somebody listens at the broker's address, and the address in words. Refused: it was open
        before in this broker epoch, and is not now."""
        place = next((one for one in broker.endpoints if one.name == self._listener), None)
        if place is None:
            return ProbeOutcome.UNKNOWN, f"no listener {self._listener}"
        address = f"its address {place.host}:{place.port} (listener {place.name})"
        outcome = await knock(place)
        if outcome is ProbeOutcome.OPEN:
            self._open[broker.id] = broker.epoch
        elif outcome is ProbeOutcome.REFUSED and self._open.get(broker.id) != broker.epoch:
            outcome = ProbeOutcome.UNKNOWN
        return outcome, address

    def published(self, brokers: Mapping[int, BrokerImage]) -> None:
        """The brokers as committed."""
        self._brokers = brokers
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
        """How long to wait for news of brokers; None: nothing else is to be done."""
        if not self._unknown():
            return None
        uniform = self._chance()
        return backoff(failures, first=_RETRY_MS, longest=_RETRY_MAX_MS, jitter=0.2, uniform=uniform) / 1000

    def _unknown(self) -> list[BrokerImage]:
        return [
            one
            for one in self._brokers.values()
            if not one.fenced and one.id != self._node_id and self._open.get(one.id) != one.epoch
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
