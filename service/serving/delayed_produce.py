"""acks=all: which batches of one produce request other replicas do not have yet.

Each partition with followers waits for its own offset, in the queue of its leader's machine
(`replication/acks.py`); the request has one timer. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import Operation
from service.network.exchange import Answer, Promise
from service.replication.acks import Waiter
from service.replication.leader import LeaderState
from service.serving.request_host import Broker
from service.wire.produce import TopicKey

_OVER: Final = Waiter(None, 0)


class Commits(Operation):
    """What one request waits for. Of the purgatory it has the timer alone."""

    __slots__ = ("_broker", "_refused", "_settled", "_waiting")

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._settled: Callable[[], None] | None = None
        self._waiting: dict[_Commit, None] = {}
        self._refused: dict[tuple[TopicKey, int], ErrorCode] = {}

    def add(self, leading: LeaderState, offset: int, topic: TopicKey, partition: int) -> None:
        """All below `offset` has to be committed; that of a duplicate may be."""
        commit = _Commit(self, leading, topic, partition)
        outcome = leading.wait(commit, offset)
        if isinstance(outcome, Waiter):
            commit.waiter = outcome
            self._waiting[commit] = None
        elif outcome is not ErrorCode.none:
            self._refused[topic, partition] = outcome

    def begin(self, timeout_ms: int, settled: Callable[[], None]) -> bool:
        """All is added: `settled` is called once each was told, or the time is over, within the work of
        whoever knows that. False where nothing is waited for."""
        if not self._waiting:
            return False
        self._settled = settled
        self._broker.timers.watch(self, (), max(timeout_ms, 0) / 1000)
        return True

    def refused(self) -> dict[tuple[TopicKey, int], ErrorCode]:
        """Where it came to nothing, once it is settled. Of a partition that has gone the reason is told."""
        for (topic, partition), error in self._refused.items():
            if error is ErrorCode.not_leader_or_follower:
                try:
                    self._broker.replicas.find(topic, partition)
                except RequestError as e:
                    self._refused[topic, partition] = e.code
        return self._refused

    def told(self, commit: _Commit, error: ErrorCode) -> None:
        if error is not ErrorCode.none:
            self._refused[commit.topic, commit.partition] = error
        del self._waiting[commit]
        if not self._waiting and self._settled is not None:
            self._broker.timers.purgatory.forget(self)
            self._settle()

    def happened(self, key: Hashable, amount: int) -> bool:
        """It watches nothing."""
        return False

    def completed(self, *, expired: bool) -> None:
        """The time is over."""
        for commit in self._waiting:
            commit.leading.give_up(commit.waiter)
            self._refused[commit.topic, commit.partition] = ErrorCode.request_timed_out
        self._waiting.clear()
        self._settle()

    def _settle(self) -> None:
        settled, self._settled = self._settled, None  # which holds this
        if settled is not None:
            settled()


class OnceCommitted(Promise):
    """What `answer` makes of it then. What was appended is in its place: what is produced behind it need not
    wait for other replicas."""

    __slots__ = ("_make", "weight")

    def __init__(self, answer: Callable[[], Answer], weight: int) -> None:
        super().__init__()
        self._make = answer
        self.weight = weight

    def settled(self) -> None:
        self.set_result(None)

    def result(self) -> Answer:
        return self._make()


class _Commit:
    """One partition of them; who tells of it calls it."""

    __slots__ = ("_of", "leading", "partition", "topic", "waiter")

    def __init__(self, of: Commits, leading: LeaderState, topic: TopicKey, partition: int) -> None:
        self._of = of
        self.leading = leading
        self.topic = topic
        self.partition = partition
        self.waiter = _OVER

    def __call__(self, error: ErrorCode) -> None:
        self._of.told(self, error)
