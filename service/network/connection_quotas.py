"""Limits on new connections: so many of an address, and so many per second.

- Of an address (``max.connections.per.ip``): beyond it a connection is closed at once.
- Per second, of an address (``connection_creation_rate``, a quota of the metadata): beyond it a connection is
  held, unread, and closed after the throttle. It counts for nothing else.
- Per second, of a listener and of all (``max.connection.creation.rate``): beyond it a connection waits, and
  so does accepting others. The listener of brokers does not count for all where there is another.

No throttle is longer than a window. Apache Kafka 4.3 ``ConnectionQuotas``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.base.addresses import normalized
from service.config.quotas import QuotaConfig
from service.network.admission import Admission
from service.network.bucket_sweeper import BucketSweeper
from service.network.metrics import ArrivalMetrics, NetworkMetrics
from service.quotas.buckets import Rates
from service.quotas.entities import Limits, Share, connection_limit
from service.quotas.windows import WindowedRate

_MOST_HELD: Final = 1000
"""Most throttled connections that are held; further ones are closed at once."""


class Arrival(NamedTuple):
    """Fate of a new connection. `wait_s`: time until it is read or, if refused, closed."""

    is_refused: bool = False
    wait_s: float = 0.0


_WELCOME: Final = Arrival()


@dataclass(slots=True, eq=False)
class _Listener:
    rate: WindowedRate
    is_protected: bool
    metrics: ArrivalMetrics


class ConnectionQuotas:
    """Limits of the listeners of one node. Owned by the event loop."""

    def __init__(
        self,
        config: Callable[[], QuotaConfig],
        listeners: tuple[str, ...],
        protected: str | None = None,
        metrics: NetworkMetrics | None = None,
    ) -> None:
        """`protected`: the listener of brokers, which does not count for all if it is not the only one."""
        self.config = config
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        first = config()
        number, self._window_ms = first.quota_window_num, first.quota_window_size_seconds * 1000

        def rate() -> WindowedRate:
            return WindowedRate(number, self._window_ms)

        self._all = rate()
        self.metrics = (metrics or NetworkMetrics()).arrivals
        """counters by listener"""
        self._listeners = {
            name: _Listener(
                rate(),
                name == protected and len(listeners) > 1,
                self.metrics.setdefault(name, ArrivalMetrics()),
            )
            for name in listeners
        }
        self._of_addresses = Rates(number, self._window_ms, longest_ms=self._window_ms)
        self._sweeper = BucketSweeper(loop, (self._of_addresses,), number * self._window_ms / 1000)
        self._counts: dict[str, int] = {}
        self._limits: Limits = {}
        self.held = 0
        """throttled connections that are not closed yet"""

    def apply(self, limits: Limits) -> None:
        """Apply these quotas of addresses to further connections; immutable."""
        self._limits = limits

    @property
    def addresses(self) -> int:
        """Number of addresses with connections."""
        return len(self._counts)

    def admission(self) -> Admission:
        """Return the limits of open connections, by the same settings."""
        protected = [name for name, one in self._listeners.items() if one.is_protected]
        return Admission(
            lambda: self.config().max_connections,
            lambda listener: self.config().connections_of(listener),
            *protected,
        )

    def arrives(self, listener: str, host: str) -> Arrival:
        """Count a new connection from the address `host`; return what becomes of it. `leaves` follows unless
        it is refused."""
        of, config, address = self._listeners[listener], self.config(), normalized(host)
        now_ms = int(self._now_s() * 1000)
        delay_ms = self._record(of, config, listener, now_ms)
        if self._limits and (throttle_ms := self._throttle_of(address, now_ms)):
            if not of.is_protected:
                self._all.record(-1, now_ms)
            of.rate.record(-1, now_ms)
            of.metrics.throttled_of_address.observe(throttle_ms / 1000)
            return Arrival(True, throttle_ms / 1000 if self.held < _MOST_HELD else 0.0)
        count = self._counts.get(address, 0)
        if count >= config.most_connections_of(address):
            of.metrics.too_many_of_address += 1
            return Arrival(is_refused=True)
        self._counts[address] = count + 1
        of.metrics.accepted += 1
        if not delay_ms:
            return _WELCOME
        of.metrics.delayed.observe(delay_ms / 1000)
        return Arrival(wait_s=delay_ms / 1000)

    def _record(self, of: _Listener, config: QuotaConfig, listener: str, now_ms: int) -> int:
        """Count a connection for the listener and for all; return how long it is delayed."""
        of.rate.record(1, now_ms)
        delay_ms = of.rate.throttle_ms(max(config.creation_rate_of(listener), _LEAST_RATE), now_ms)
        if not of.is_protected:
            self._all.record(1, now_ms)
            of_all = self._all.throttle_ms(max(config.max_connection_creation_rate, _LEAST_RATE), now_ms)
            delay_ms = max(delay_ms, of_all)
        return min(delay_ms, self._window_ms)

    def _throttle_of(self, address: str, now_ms: int) -> int:
        """Count a connection for its address, unless that is throttled for it: return how long."""
        limit = connection_limit(self._limits, address)
        if limit is None:
            return 0
        self._sweeper.watch()
        share = Share(address, None, limit)
        throttle_ms = self._of_addresses.record(share, 1, now_ms)
        if throttle_ms:
            self._of_addresses.take_back(share, 1, now_ms)
        return throttle_ms

    def leaves(self, host: str) -> None:
        """Note the end of a connection that was not refused."""
        address = normalized(host)
        left = self._counts[address] - 1
        if left:
            self._counts[address] = left
        else:
            del self._counts[address]

    def close(self) -> None:
        """End the timer."""
        self._sweeper.close()


_LEAST_RATE: Final = 0.001
"""A rate of 0 delays each connection by a window."""
