"""A follower machine and the logs of its partitions, for tests."""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    Append,
    BuildLocalStart,
    Done,
    Effect,
    Fetch,
    FlushAppended,
    FollowerFetchResponse,
    PartitionFetchResponse,
    Restart,
    Truncate,
)
from tests.unit.replication.leaders import NOW_MS, Log

BACKOFF_MS = 1_000
NONE = ErrorCode.none


def tip(number: int = 0) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


class Fetcher:
    """A machine, and the logs of its partitions."""

    def __init__(self, count: int = 1, end: int = 10, *, is_clean: bool = True) -> None:
        self.machine = FollowerMachine(FollowerSettings(BACKOFF_MS))
        self.now_ms = NOW_MS
        self.session_id = 77
        self.logs = [Log(end, ((1, 0), (3, 4))) for _ in range(count)]
        for number in range(count):
            self.machine.assign(tip(number), self.logs[number], 5, self.now_ms, is_clean=is_clean)

    def fetch(self) -> Fetch:
        fetch = self.machine.next_fetch(self.now_ms)
        assert fetch is not None
        return fetch

    def answer(
        self, fetch: Fetch, *partitions: PartitionFetchResponse, error: ErrorCode = NONE
    ) -> tuple[Effect, ...]:
        return self.machine.answered(
            fetch.number, FollowerFetchResponse(error, self.session_id, partitions), self.now_ms
        )

    def is_told(self, error: ErrorCode = NONE, **told: object) -> tuple[Effect, ...]:
        """One fetch, and what is answered for the first partition; nothing for the others."""
        fetch = self.fetch()
        others = [PartitionFetchResponse(one) for one, _ in fetch.partitions if one != tip()]
        return self.answer(fetch, PartitionFetchResponse(tip(), error, **told), *others)  # type: ignore[arg-type]

    def done(self, effect: Effect, outcome: Done = Done.DONE) -> tuple[Effect, ...]:
        assert isinstance(effect, Append | Truncate | Restart | BuildLocalStart | FlushAppended)
        return self.machine.done(effect.number, outcome, self.now_ms)
