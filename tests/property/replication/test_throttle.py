"""The quota of throttled replicas: no laxer than Kafka's, and exact about when it is free again."""

from __future__ import annotations

from random import Random

from service.replication.throttle import Quota

HISTORIES = 300


class ByTheBook:
    """``SampledStat`` and ``SimpleRate``: a ring of samples that begin anew where they are looked at late."""

    def __init__(self, windows: int, window_ms: int) -> None:
        self.most, self.window_ms, self.kept_ms = windows + 1, window_ms, windows * window_ms
        self.samples: list[list[int]] = []
        """begun, last, size"""
        self.current = 0

    def record(self, size: int, now_ms: int) -> None:
        if not self.samples:
            self.samples.append([now_ms, now_ms, 0])
        if now_ms - self.samples[self.current][0] >= self.window_ms:
            self.current = (self.current + 1) % self.most
            if self.current >= len(self.samples):
                self.samples.append([now_ms, now_ms, 0])
            else:
                self.samples[self.current] = [now_ms, now_ms, 0]
        self.samples[self.current][1] = now_ms
        self.samples[self.current][2] += size

    def is_exceeded(self, bytes_per_s: int, now_ms: int) -> bool:
        for sample in self.samples:
            if now_ms - sample[1] >= self.kept_ms:
                sample[:] = [now_ms, now_ms, 0]
        begun_ms = min((one[0] for one in self.samples), default=now_ms)
        size = sum(one[2] for one in self.samples)
        return size * 1000 > bytes_per_s * max(now_ms - begun_ms, self.window_ms)


def test_the_throttle_is_never_laxer_than_kafkas() -> None:
    held = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        windows, window_s = random.choice([(11, 1), (1, 1), (3, 2)])
        quota, book = Quota(windows, window_s), ByTheBook(windows, window_s * 1000)
        quota.bytes_per_s = random.choice([0, 1, 1_000, 1_000_000])
        now_ms = 1_000
        for _ in range(200):
            now_ms += random.choice([0, 1, random.randint(1, 300), random.randint(1, 30_000)])
            if random.random() < 0.7:
                size = random.randint(1, 2 * max(quota.bytes_per_s, 1))
                quota.record(size, now_ms)
                book.record(size, now_ms)
            is_held = quota.is_exceeded(now_ms)
            held += is_held
            assert is_held or not book.is_exceeded(quota.bytes_per_s, now_ms), f"seed {seed} at {now_ms}"
    assert held > HISTORIES


def test_a_throttled_replica_is_released_exactly_when_promised() -> None:
    waited = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        quota = Quota(random.randint(1, 12), random.randint(1, 2))
        quota.bytes_per_s = random.choice([0, 1, 50, 1_000, 20_000])
        now_ms = random.randint(0, 10_000)
        for _ in range(random.randint(1, 30)):
            quota.record(random.randint(1, 3 * quota.bytes_per_s + 1), now_ms)
            now_ms += random.randint(0, 2_500)
        free_ms = quota.free_ms(now_ms)
        waited += free_ms > now_ms
        for at_ms in sorted({now_ms, *(random.randint(now_ms, free_ms) for _ in range(20)), free_ms - 1}):
            if now_ms <= at_ms < free_ms:
                assert quota.is_exceeded(at_ms), f"seed {seed}: free at {free_ms}, said {at_ms}"
        assert not quota.is_exceeded(free_ms), f"seed {seed}: held at {free_ms}"
        assert quota.free_ms(free_ms) == free_ms
    assert waited > HISTORIES // 2


def test_a_throttled_replica_moves_bytes_at_the_quota() -> None:
    """One answer more, and a window's worth to begin with, as long as an answer is less than all windows."""
    for seed in range(HISTORIES // 3):
        random = Random(seed)
        quota = Quota(11, 1)
        bound = quota.bytes_per_s = random.randint(1_000, 1_000_000)
        most = random.randint(1, 8) * bound
        begun_ms = now_ms = random.randint(0, 100_000)
        moved = 0
        while now_ms < begun_ms + 120_000:
            assert moved <= bound * (now_ms - begun_ms + 1_000) / 1000, f"seed {seed} at {now_ms}"
            size = random.randint(most // 10, most) if random.random() < 0.3 else most
            quota.record(size, now_ms)
            moved += size
            now_ms = max(quota.free_ms(now_ms), now_ms + random.randint(1, 20))
        assert moved >= 0.9 * bound * 120 - most, f"seed {seed}: no more is held back than has to be"
        assert quota.recorded == moved
