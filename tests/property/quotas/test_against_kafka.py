"""Throttles against Apache Kafka's Sensor, Rate and TokenBucket: the same, millisecond for millisecond."""

from __future__ import annotations

import random
import subprocess
from functools import partial

import pytest

from service.base.errors import RequestError
from service.quotas.mutations import MutationQuota, TokenBucket
from service.quotas.windows import WindowedRate
from service.replication.throttle import Quota
from tests.support.java_programs import compiled
from tests.support.requirements import KAFKA_LIBS

pytestmark = pytest.mark.java

HISTORIES = 400
EVENTS = 120
BEGIN_MS = 1_700_000_000_000


class History:
    """Values in time, and what the limit is."""

    def __init__(self, source: random.Random, kind: str) -> None:
        self.kind = kind
        self.windows = source.choice((1, 2, 3, 11, 11, 11, 40))
        self.size_ms = source.choice((1000, 1000, 2000, 5000))
        is_whole = kind not in ("tokens", "strict") and source.random() < 0.7
        self.limit = float(source.choice((1, 10, 1_000, 123_457, 50_000_000)))
        if not is_whole and kind != "simple":
            self.limit = source.choice((0.01, 0.5, 2.5, 12.0, 700.3))
        most = self.limit * source.choice((0.01, 0.3, 1, 5, 40))
        now_ms = BEGIN_MS + source.randrange(100_000)
        self.events: list[tuple[float, int]] = []
        pauses = source.choice(
            ((0, 1, 3), (0, 10, 90), (100, 999, 1000, 1001), (0, 500, 12_000), (1, 60_000))
        )
        for _ in range(EVENTS):
            now_ms += source.choice(pauses) + source.randrange(3)
            value = most * source.random()
            if is_whole or kind in ("simple", "strict", "tokens"):
                value = float(round(value) + (kind in ("simple", "strict", "tokens")))
            self.events.append((value, now_ms))

    def line(self) -> str:
        events = " ".join(f"{value!r}:{ms}" for value, ms in self.events)
        return f"{self.kind} {self.windows} {self.size_ms} {self.limit!r} {events}"

    def ours(self) -> str:
        return " ".join(map(str, getattr(self, f"_{self.kind.replace('-', '_')}")()))

    def _rate(self, takes_back: bool = False) -> list[int]:
        rate, out = WindowedRate(self.windows, self.size_ms), []
        for value, ms in self.events:
            rate.record(value, ms)
            out.append(rate.throttle_ms(self.limit, ms))
            if takes_back and out[-1]:
                rate.record(-value, ms)
        return out

    def _take_back(self) -> list[int]:
        return self._rate(takes_back=True)

    def _simple(self) -> list[int]:
        quota, out = Quota(self.windows, self.size_ms // 1000), []
        quota.bytes_per_s = int(self.limit)
        for value, ms in self.events:
            quota.record(int(value), ms)
            out.append(int(quota.is_exceeded(ms)))
        return out

    def _tokens(self) -> list[int]:
        bucket, out = TokenBucket(self.windows * self.size_ms / 1000), []
        for value, ms in self.events:
            bucket.take(value, self.limit, ms)
            out.append(bucket.throttle_ms(self.limit, ms))
        return out

    def _strict(self) -> list[str]:
        bucket, out = TokenBucket(self.windows * self.size_ms / 1000), []
        for value, ms in self.events:
            quota = MutationQuota(bucket, self.limit, True, partial(int, ms))
            try:
                quota.record(int(value))
                out.append("0")
            except RequestError:
                out.append(f"no{quota.throttle_ms()}")
        return out


def test_throttles_are_kafkas_to_the_millisecond() -> None:
    classes = compiled("Quotas")
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    kinds = ("rate", "take-back", "simple", "tokens", "strict")
    histories = [History(source, kinds[n % len(kinds)]) for n in range(HISTORIES)]
    lines = "\n".join(one.line() for one in histories) + "\n"
    command = ["java", "-cp", f"{classes}:{KAFKA_LIBS}/*", "Quotas"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == HISTORIES
    throttled = 0
    for one, theirs in zip(histories, answers, strict=True):
        assert one.ours() == theirs, f"seed {seed}: {one.line()[:200]}"
        throttled += sum(word != "0" for word in theirs.split())
    assert throttled > HISTORIES, "most histories have throttles"


@pytest.mark.parametrize("limit", [1_000.0, 333.3])
@pytest.mark.parametrize("most", [40, 400])
def test_over_a_minute_a_client_that_waits_gets_its_share(limit: float, most: int) -> None:
    source = random.Random(1)
    rate, now_ms, sent = WindowedRate(11, 1000), 0, 0
    while now_ms < 120_000:
        size = source.randrange(1, most)
        rate.record(size, now_ms)
        sent += size if now_ms >= 60_000 else 0
        now_ms += rate.throttle_ms(limit, now_ms) + 1
    assert sent / 60 == pytest.approx(limit, rel=0.1)
