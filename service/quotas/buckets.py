"""Buckets of one quota: what each share has used lately. [P]

A bucket that holds nothing any more is forgotten: memory follows who was active, whatever users and client
ids are made up. The limit of a bucket comes with each call, so a change of it holds at once.

>>> rates = Rates(number=11, size_ms=1000)
>>> share = Share("alice", None, 100.0)
>>> rates.record(share, 1500, 0), len(rates)
(5000, 1)
>>> rates.forget_idle(10_999), rates.forget_idle(11_000), len(rates)
(False, False, 0)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeAlias, TypeVar

from service.quotas.entities import Share
from service.quotas.mutations import TokenBucket
from service.quotas.windows import WindowedRate

Key: TypeAlias = "tuple[str | None, str | None]"
FORGOTTEN_AT_A_TIME = 200
"""Buckets that one call of `forget_idle` forgets at most."""
_FORGOTTEN_BY_A_NEW_ONE = 2
_SURE = 0.999
"""Part of a limit below which no rounding counts."""


class Bucket(Protocol):
    """Use of one share."""

    def is_idle(self, now_ms: int) -> bool:
        """Return whether it is as good as a new one."""


B = TypeVar("B", bound=Bucket)


class Buckets(Generic[B]):
    """Buckets by user and client id, the one that was used longest ago first."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: OrderedDict[Key, B] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def _new(self) -> B:
        raise NotImplementedError

    def of(self, share: Share, now_ms: int) -> B:
        """Return the bucket of `share`, which is used now."""
        key = share[:2]
        found = self._by_key.get(key)
        if found is None:
            self._forget(now_ms, _FORGOTTEN_BY_A_NEW_ONE)
            found = self._by_key[key] = self._new()
        else:
            self._by_key.move_to_end(key)
        return found

    def find(self, share: Share) -> B | None:
        """Return the bucket of `share`, if it has one."""
        return self._by_key.get(share[:2])

    def forget_idle(self, now_ms: int) -> bool:
        """Forget some of the buckets that are idle; return whether there are more."""
        return self._forget(now_ms, FORGOTTEN_AT_A_TIME)

    def _forget(self, now_ms: int, most: int) -> bool:
        by_key = self._by_key
        for _ in range(most):
            if not by_key:
                return False
            key, oldest = next(iter(by_key.items()))
            if not oldest.is_idle(now_ms):
                return False
            del by_key[key]
        return True


class Rates(Buckets[WindowedRate]):
    """Averages over the last windows."""

    __slots__ = ("_number", "_size_ms", "_sure_s", "longest_ms")

    def __init__(self, number: int, size_ms: int, longest_ms: int | None = None) -> None:
        """`longest_ms`: longest throttle; None: no bound."""
        super().__init__()
        self._number = number
        self._size_ms = size_ms
        self._sure_s = _SURE * (number - 1) * size_ms / 1000
        self.longest_ms = longest_ms

    def _new(self) -> WindowedRate:
        return WindowedRate(self._number, self._size_ms)

    def record(self, share: Share, value: float, now_ms: int) -> int:
        """Count `value`; return how long the client is throttled for it, in ms, 0 for not at all."""
        rate = self._by_key.get(key := share[:2])
        if rate is None:
            rate = self.of(share, now_ms)
        else:
            self._by_key.move_to_end(key)
        rate.record(value, now_ms)
        limit = share.limit
        if rate.total < limit * self._sure_s:
            return 0  # within the limit over the shortest time that the average is taken over
        throttle_ms = rate.throttle_ms(limit, now_ms)
        return throttle_ms if self.longest_ms is None else min(throttle_ms, self.longest_ms)

    def take_back(self, share: Share, value: float, now_ms: int) -> None:
        """Uncount what was recorded at this very time."""
        self.of(share, now_ms).record(-value, now_ms)

    def count(self, share: Share, value: float, now_ms: int) -> None:
        """Count `value`, which throttles the next request at the earliest."""
        self.of(share, now_ms).record(value, now_ms)

    def throttle_ms(self, share: Share, now_ms: int, more: float = 0) -> int:
        """Return how long the client would be throttled if it used `more`; nothing is counted."""
        found = self.find(share) or self._new()
        if found.total + more < share.limit * self._sure_s:
            return 0
        throttle_ms = found.throttle_ms(share.limit, now_ms, more)
        return throttle_ms if self.longest_ms is None else min(throttle_ms, self.longest_ms)

    def most(self, share: Share) -> float:
        """Return the greatest value that can be recorded without a throttle, by a client that has used
        nothing."""
        return share.limit * (self._number - 1) * self._size_ms / 1000


class Tokens(Buckets[TokenBucket]):
    """Token buckets."""

    __slots__ = ("_burst_s",)

    def __init__(self, number: int, size_ms: int) -> None:
        super().__init__()
        self._burst_s = number * size_ms / 1000

    def _new(self) -> TokenBucket:
        return TokenBucket(self._burst_s)
