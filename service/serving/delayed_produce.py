"""Wait of a produce request with acks=all until the ISR has its batches (Kafka `DelayedProduce`).

Each partition with followers waits for its own offset, in the queue of its leader's machine
(`replication/ack_queue.py`); the request has one timer. While the gate of a cut hides what is committed, the
answer, which would tell of it, waits for the gate. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import Operation
from service.network.request import Answer, PendingResponse
from service.partition.gate import CutGate
from service.replication.ack_queue import Waiter
from service.replication.leader import LeaderState
from service.serving.request_host import Broker
from service.wire.produce import TopicKey

_OVER: Final = Waiter(None, 0)


class DelayedProduce(Operation):
    """The appended batches of one request. It uses only the purgatory's timer."""

    __slots__ = ("_broker", "_gate", "_refused", "_settled", "_waiting")

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._gate: CutGate | None = None
        """the gate that the answer waits for"""
        self._settled: Callable[[], None] | None = None
        self._waiting: dict[_PartitionWait, None] = {}
        self._refused: dict[tuple[TopicKey, int], ErrorCode] = {}

    def add(self, leading: LeaderState, offset: int, topic: TopicKey, partition: int) -> None:
        """Wait until all offsets below `offset` are committed; those of a duplicate may be already."""
        wait = _PartitionWait(self, leading, topic, partition)
        outcome = leading.wait(wait, offset)
        if isinstance(outcome, Waiter):
            wait.waiter = outcome
            self._waiting[wait] = None
        elif outcome is not ErrorCode.none:
            self._refused[topic, partition] = outcome

    def hold(self, gate: CutGate) -> None:
        """Wait until `gate`, which is not open, lets batches be seen that are committed. It opens by itself,
        so no time limit ends this wait."""
        if self._gate is None:
            self._gate = gate
            gate.when_open(self._opened)

    def _opened(self) -> None:
        self._gate = None
        if not self._waiting and self._settled is not None:
            self._broker.timers.purgatory.forget(self)
            self._settle()

    def begin(self, timeout_ms: int, settled: Callable[[], None]) -> bool:
        """Start the timer, after the last `add` and `hold`. Returns False if no batch has to wait.

        `settled` is called as soon as every partition has its outcome or the time is up.
        """
        if not self._waiting and self._gate is None:
            return False
        self._settled = settled
        self._broker.metrics.produces_waiting += 1
        self._broker.timers.watch(self, (), max(timeout_ms, 0) / 1000)
        return True

    def refused(self) -> dict[tuple[TopicKey, int], ErrorCode]:
        """Return the errors of batches that are not known to be committed, once settled. A partition that
        this node no longer has gets the reason for that.
        """
        for (topic, partition), error in self._refused.items():
            if error is ErrorCode.not_leader_or_follower:
                try:
                    self._broker.replicas.find(topic, partition)
                except RequestError as e:
                    self._refused[topic, partition] = e.code
        return self._refused

    def finish(self, wait: _PartitionWait, error: ErrorCode) -> None:
        """Note the outcome of one partition."""
        if error is not ErrorCode.none:
            self._refused[wait.topic, wait.partition] = error
        del self._waiting[wait]
        wait.waiter = _OVER  # breaks a cycle: the waiter's key is the wait
        if not self._waiting and self._gate is None and self._settled is not None:
            self._broker.timers.purgatory.forget(self)
            self._settle()

    def happened(self, key: Hashable, amount: int) -> bool:
        """Return False: it watches no key."""
        return False

    def completed(self, *, expired: bool) -> None:
        """End the wait with REQUEST_TIMED_OUT for batches that are not committed."""
        for wait in self._waiting:
            wait.leading.give_up(wait.waiter)
            self._refused[wait.topic, wait.partition] = ErrorCode.request_timed_out
        self._waiting.clear()
        if self._gate is None:
            self._settle()

    def _settle(self) -> None:
        settled, self._settled = self._settled, None  # breaks a cycle: the callback holds this operation
        if settled is not None:
            self._broker.metrics.produces_waiting -= 1
            settled()


class DelayedResponse(PendingResponse):
    """A response that `make` builds once the batches are settled. The batches have their offsets already, so
    the connection's next Produce requests need not wait for it.
    """

    __slots__ = ("_make", "weight")

    def __init__(self, make: Callable[[], Answer], weight: int) -> None:
        super().__init__()
        self._make = make
        self.weight = weight

    def settled(self) -> None:
        self.set_result(None)

    def result(self) -> Answer:
        return self._make()


class _PartitionWait:
    """The wait for one partition; its leader's machine calls it with the outcome."""

    __slots__ = ("_of", "leading", "partition", "topic", "waiter")

    def __init__(self, of: DelayedProduce, leading: LeaderState, topic: TopicKey, partition: int) -> None:
        self._of = of
        self.leading = leading
        self.topic = topic
        self.partition = partition
        self.waiter = _OVER

    def __call__(self, error: ErrorCode) -> None:
        self._of.finish(self, error)
