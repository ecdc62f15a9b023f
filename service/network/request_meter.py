"""Client quotas of requests: what each one uses, and how long its client is throttled (KIP-124).

While any quota is set, the dispatcher gives each request of a client with a limit a `RequestMeter`. It counts
the loop's time: of the handler's call, of each step of a task that goes on with it, and of threads that work
for it. Whoever makes the response asks the meter how long the client is throttled; the response says so, goes
out at once, and the connection's next request waits (`Throttled`, KIP-219).

Apache Kafka 4.3 ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``RequestHandlerHelper``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, ParamSpec, TypeVar

from service.base.metrics import Histogram
from service.config.quotas import QuotaConfig
from service.network.metrics import OF_FETCH, OF_PRODUCE, OF_REQUEST, QUOTA_NAMES
from service.network.quota_sweeper import QuotaSweeper
from service.quotas.buckets import Rates, Tokens
from service.quotas.entities import UNLIMITED, Limits, Shares, shares_of
from service.quotas.mutations import MutationQuota
from service.security.session import Session

P = ParamSpec("P")
T = TypeVar("T")

PERCENT: Final = 100
"""A client that holds the loop all the time uses so much of ``request_percentage``."""


class RequestQuotas:
    """Quotas of users and client ids on one node. Owned by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: QuotaConfig) -> None:
        number, size_s = config.quota_window_num, config.quota_window_size_seconds
        size_ms = size_s * 1000
        self.active = False
        """whether any quota is set"""
        self.produce = Rates(number, size_ms)
        self.fetch = Rates(number, size_ms)
        self.request = Rates(number, size_ms, longest_ms=size_ms)
        self.mutation = Tokens(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        )
        self.throttles = {name: Histogram() for name in QUOTA_NAMES}
        """throttles of clients by quota, in seconds"""
        self.now_s = loop.time
        self._limits: Limits = {}
        kinds = (self.produce, self.fetch, self.request, self.mutation)
        self.sweeper = QuotaSweeper(loop, kinds, number * size_s)

    def apply(self, limits: Limits) -> None:
        """Apply these limits from the next request on; immutable."""
        self._limits = limits
        self.active = len(limits) > 0

    def now_ms(self) -> int:
        """Return the loop's time."""
        return int(self.now_s() * 1000)

    def shares_of(self, session: Session, client_id: str) -> Shares:
        """Return the shares of a client, which its session remembers for its last client id."""
        limits = self._limits
        memo = session.shares
        if memo is None or memo[0] is not limits or memo[1] != client_id:
            shares = shares_of(limits, session.principal.name, client_id)
            memo = session.shares = (limits, client_id, shares)
        return memo[2]

    def meter(self, session: Session, client_id: str, size: int) -> RequestMeter | None:
        """Return the meter of a request of `size` bytes; None where its client is unlimited."""
        shares = self.shares_of(session, client_id)
        if shares is UNLIMITED:
            return None
        if not self.sweeper.is_watching:
            self.sweeper.watch()
        return RequestMeter(self, shares, size)

    def mutations_of(self, session: Session, client_id: str, *, is_strict: bool) -> MutationQuota | None:
        """Return what a request of this client may change; None without a limit."""
        share = self.shares_of(session, client_id).mutation if self.active else None
        if share is None:
            return None
        self.sweeper.watch()
        bucket = self.mutation.of(share, self.now_ms())
        return MutationQuota(bucket, share.limit, is_strict, self.now_ms)

    def active_clients(self) -> dict[str, int]:
        """Return the number of users or clients with something that counts, by quota."""
        used = len(self.produce), len(self.fetch), len(self.request), len(self.mutation)
        return dict(zip(QUOTA_NAMES, used, strict=True))

    def close(self) -> None:
        """Stop sweeping unused buckets."""
        self.sweeper.close()

    def throttled(self, quota: str, throttle_ms: int) -> None:
        """Count a throttle of a client."""
        self.throttles[quota].observe(throttle_ms / 1000)


class RequestMeter:
    """Use of the node by one request. It runs while the loop works for the request."""

    __slots__ = ("_is_answered", "_quotas", "_recorded_s", "_since_s", "_size", "_spent_s", "shares")

    def __init__(self, quotas: RequestQuotas, shares: Shares, size: int) -> None:
        self._quotas = quotas
        self.shares = shares
        self._size = size
        self._spent_s = self._recorded_s = 0.0
        self._is_answered = False
        self._since_s: float | None = quotas.now_s()

    # -- time

    def resume(self) -> None:
        """Begin a step of work."""
        self._since_s = self._quotas.now_s()

    def pause(self) -> None:
        """End a step of work. What comes after the answer, such as sending it, counts for later requests."""
        now_s, since_s = self._quotas.now_s(), self._since_s
        if since_s is not None:
            self._spent_s += now_s - since_s
            self._since_s = None
        if self._is_answered and (share := self.shares.request) is not None:
            rest_s, self._recorded_s = self._spent_s - self._recorded_s, self._spent_s
            self._quotas.request.count(share, rest_s * PERCENT, int(now_s * 1000))

    async def follow(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and count its steps."""
        return await self._steps(work)

    @coroutine
    def _steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = work.send
        argument: BaseException | None = None
        while True:
            self.resume()
            try:
                waits_for = step(argument)
            except StopIteration as e:
                result: T = e.value
                return result
            finally:
                self.pause()
            try:
                yield waits_for
            except BaseException as e:
                step, argument = work.throw, e
            else:
                step, argument = work.send, None

    def on_thread(self, call: Callable[P, T]) -> Callable[P, T]:
        """Return `call`, whose time counts."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            began_s = self._quotas.now_s()
            try:
                return call(*args, **kwargs)
            finally:
                self._spent_s += self._quotas.now_s() - began_s

        return timed

    # -- throttles, in ms

    def answered(self) -> int:
        """Count the request's time; return how long its client is throttled for it."""
        return self._told(OF_REQUEST, self._of_time(self._quotas.now_s()))

    def produced(self, *, is_exempt: bool) -> int:
        """Count a Produce request; return how long its client is throttled. `is_exempt`: without response,
        the time does not count."""
        share, quotas, of_bytes = self.shares.produce, self._quotas, 0
        now_s = quotas.now_s()
        if share is not None:
            of_bytes = quotas.produce.record(share, self._size, int(now_s * 1000))
        of_time = 0 if is_exempt else self._of_time(now_s)
        return self._told(OF_PRODUCE if of_bytes > of_time else OF_REQUEST, max(of_bytes, of_time))

    def fetched(self, size: int) -> int:
        """Count a Fetch response of `size` bytes, unless its client is throttled for it: then the response
        goes out empty."""
        share, quotas, of_bytes = self.shares.fetch, self._quotas, 0
        now_s = quotas.now_s()
        of_time = self._of_time(now_s)
        if share is not None:
            now_ms = int(now_s * 1000)
            of_bytes = quotas.fetch.record(share, size, now_ms)
            if of_bytes or of_time:
                quotas.fetch.take_back(share, size, now_ms)
        return self._told(OF_FETCH if of_bytes > of_time else OF_REQUEST, max(of_bytes, of_time))

    def fetch_throttle_ms(self, size: int) -> int:
        """Return how long the client would be throttled for a response of `size` bytes. Counts nothing."""
        share, quotas = self.shares.fetch, self._quotas
        return 0 if share is None else quotas.fetch.throttle_ms(share, quotas.now_ms(), size)

    def refused_fetch(self, throttle_ms: int) -> int:
        """Count a fetch that was not read, as its client is throttled so long for what it would get."""
        of_time = self._of_time(self._quotas.now_s())
        return self._told(OF_FETCH if throttle_ms > of_time else OF_REQUEST, max(throttle_ms, of_time))

    def most_fetched(self, wanted: int) -> int:
        """Return how much of `wanted` bytes one response may have: more would always be throttled."""
        share = self.shares.fetch
        return wanted if share is None else int(min(wanted, self._quotas.fetch.most(share)))

    def is_quick(self) -> bool:
        """Return whether a response may go out that tells no throttle, as the client is not over its time.
        The time counts."""
        share, quotas = self.shares.request, self._quotas
        self._is_answered = share is None or not quotas.request.throttle_ms(share, quotas.now_ms())
        return self._is_answered

    def _of_time(self, now_s: float) -> int:
        self._is_answered = True
        share = self.shares.request
        if share is None:
            return 0
        running_s = 0.0 if self._since_s is None else now_s - self._since_s
        spent_s = self._spent_s + running_s
        new_s, self._recorded_s = spent_s - self._recorded_s, spent_s
        return self._quotas.request.record(share, new_s * PERCENT, int(now_s * 1000))

    def _told(self, quota: str, throttle_ms: int) -> int:
        if throttle_ms:
            self._quotas.throttled(quota, throttle_ms)
        return throttle_ms
