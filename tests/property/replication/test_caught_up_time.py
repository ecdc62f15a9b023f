"""Time by session: what leaders know of followers whom idle fetches do not touch is what Kafka would know."""

from __future__ import annotations

from random import Random

from service.replication.leader import (
    BrokerStatus,
    LeaderSettings,
    Leadership,
    LeaderState,
    ReplicaSession,
)
from service.replication.replica_fetch import ReplicaFetch
from tests.property.replication.model import ModelLog

LAG_MS = 100


class ByTheBook:
    """``Replica``: each fetch of the session looks at the partition."""

    def __init__(self, now_ms: int) -> None:
        self.end = -1
        self.last_fetch_leader_end = -1
        self.last_fetch_ms = 0
        self.caught_up_ms = now_ms

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.end = offset
        self.last_fetch_leader_end = max(leader_end, self.last_fetch_leader_end)
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int) -> bool:
        return self.end == leader_end or now_ms - self.caught_up_ms <= LAG_MS


def play(seed: int) -> None:
    random = Random(seed)
    log = ModelLog()
    log.append(1, list(range(random.randint(0, 3))))
    log.note_epoch(1, log.log_end_offset)
    now_ms, epoch = 1_000, BrokerStatus(7, is_active=True)
    leader = LeaderState(
        1,
        LeaderSettings(LAG_MS),
        {1: epoch, 2: epoch},
        log,
        Leadership(1, 1, (1, 2), (1, 2)),
        high_watermark=0,
        min_insync_replicas=1,
        now_ms=now_ms,
    )
    book, session, offset = ByTheBook(now_ms), ReplicaSession(), 0
    asked = seen_end = -1
    follower = leader.followers[0]
    for _ in range(200):
        now_ms += random.choice((0, 1, 30, 90, 120))
        act = random.random()
        if act < 0.4:
            log.append(1, [0] * random.randint(1, 3))
            leader.appended(now_ms)
        elif act < 0.9:
            if random.random() < 0.6:
                offset = min(log.log_end_offset, offset + random.randint(0, 4))
            session.last_fetch_ms = now_ms
            if asked != offset or seen_end != log.log_end_offset:
                leader.fetched(ReplicaFetch(2, 7, 1, offset, -1), session, now_ms)
                asked, seen_end = offset, log.log_end_offset
            book.fetched(offset, log.log_end_offset, now_ms)
        elif act < 0.93:
            leader.detach(2, session)
            session, asked = ReplicaSession(), -1
        expected = book.is_caught_up(log.log_end_offset, now_ms)
        assert leader._is_caught_up(follower, now_ms) is expected, f"seed {seed}"
        if book.end >= 0:
            told = follower.last_caught_up_ms(log.log_end_offset)
            assert told == book.caught_up_ms, f"seed {seed}: {told} is not {book.caught_up_ms}"


def test_idle_fetches_need_not_touch_a_partition() -> None:
    for seed in range(500):
        play(seed)
