"""Topics that are made and deleted all the time, through every node of a cluster, and what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.blocking_client import BlockingClient
from service.metadata.batches import decode_batches
from service.metadata.records import RemoveTopicRecord, TopicRecord
from service.records.batch import complete_headers
from service.wire.api import ApiKey, request_module
from service.wire.errors import WireError
from tests.support.processes import wait_until
from tests.support.quorums import Member

_KEPT: Final = 20
"""Topics that one changer leaves alone before it deletes the oldest"""
_AGAIN_S: Final = 0.02
_ANSWER_S: Final = 15.0
DONE: Final = frozenset({ErrorCode.none})
AS_IF_DONE: Final = frozenset({ErrorCode.topic_already_exists, ErrorCode.unknown_topic_or_partition})
"""The answers to a change that was asked for again after its first answer was lost"""


class Answered(NamedTuple):
    """A change that was answered. Times are those of the monotonic clock, in seconds."""

    name: str
    creates: bool
    sent_s: float
    answered_s: float


class Changer:
    """One client of one broker on a thread of its own: makes topics and deletes them, one after the other.

    A change that is not answered, or is refused for want of a controller, is asked for again until it is.
    """

    def __init__(self, node_id: int, bootstrap: str, pause_s: float, seed: int, number: int = 0) -> None:
        """`number`: of those of one broker."""
        self.node_id = node_id
        self._stem = f"c{node_id}-{number}" if number else f"c{node_id}"
        self.answers: list[Answered] = []
        self.refusals: list[tuple[str, str]] = []
        """changes that were refused for good"""
        self.unknown: set[str] = set()
        """topics of changes that were asked for, and not answered before the end"""
        self._host, _, port = bootstrap.rpartition(":")
        self._port = int(port)
        self.pause_s = pause_s
        self._random = Random(seed)
        self._client: BlockingClient | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"changer-{node_id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The change under way is seen through first, as long as anybody answers."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        kept: list[str] = []
        number, due_s = 0, time.monotonic()
        # who was kept waiting does not hurry after it
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s, time.monotonic()) + self.pause_s * self._random.uniform(0.5, 1.5)
            creates = len(kept) < _KEPT or self._random.random() < 0.5
            if creates:
                number += 1
                name = f"{self._stem}-{number}"
            else:
                name = kept.pop(0)
            sent_s = time.monotonic()
            is_again = False
            while True:
                code = self._ask(name, creates=creates)
                if code in DONE or (is_again and code in AS_IF_DONE):
                    self.answers.append(Answered(name, creates, sent_s, time.monotonic()))
                    if creates:
                        kept.append(name)
                    break
                if code not in (None, ErrorCode.request_timed_out, ErrorCode.not_controller):
                    self.refusals.append((name, str(code)))
                    break
                is_again = True
                if self._stop.wait(_AGAIN_S):
                    self.unknown.add(name)
                    return
        if self._client is not None:
            self._client.close()

    def _ask(self, name: str, *, creates: bool) -> ErrorCode | None:
        """The answer; None where there was none."""
        try:
            if self._client is None:
                self._client = BlockingClient(self._host, self._port, "changer", timeout_s=_ANSWER_S)
            answer = self._create(name) if creates else self._delete(name)
        except (OSError, WireError, RequestError):
            if self._client is not None:
                with suppress(OSError):
                    self._client.close()
                self._client = None
            return None
        return answer

    def _create(self, name: str) -> ErrorCode:
        assert self._client is not None
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        request = module.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=5))
        answer: ErrorCode = self._client.request(ApiKey.CREATE_TOPICS, request).topics[0].error_code
        return answer

    def _delete(self, name: str) -> ErrorCode:
        assert self._client is not None
        module = request_module(ApiKey.DELETE_TOPICS)
        topic = module.DeleteTopicState(name=name, topic_id=None)
        request = module.DeleteTopicsRequest(topics=(topic,), timeout=timedelta(seconds=5))
        answer: ErrorCode = self._client.request(ApiKey.DELETE_TOPICS, request).responses[0].error_code
        return answer


class Changes:
    """Changers for all nodes of a cluster, so many changes a second together. For a `with`.

    `each`: changers of one node, which wait for their answers beside each other.
    """

    def __init__(
        self, bootstraps: Sequence[tuple[int, str]], per_second: float, seed: int, each: int = 1
    ) -> None:
        self._per_second, self._seed, self._each = per_second, seed, each
        self._began_s = time.monotonic()
        self.changers: list[Changer] = []
        for node_id, place in bootstraps:
            self.add(node_id, place)

    def add(self, node_id: int, bootstrap: str) -> None:
        """A node more, of which changes are asked: all of them together stay as many a second."""
        pause_s = (len(self.changers) + self._each) / self._per_second
        for number in range(self._each):
            seed = self._seed + node_id + 1000 * number
            self.changers.append(Changer(node_id, bootstrap, pause_s, seed, number))
        for one in self.changers:
            one.pause_s = pause_s

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for one in self.changers:
            one.stop()

    @property
    def answers(self) -> list[Answered]:
        return [answer for one in self.changers for answer in tuple(one.answers)]

    @property
    def refusals(self) -> list[tuple[str, str]]:
        return [refusal for one in self.changers for refusal in one.refusals]

    @property
    def rate(self) -> float:
        """Changes answered, a second, since this began."""
        return len(self.answers) / (time.monotonic() - self._began_s)

    def next_after(self, moment_s: float) -> float | None:
        """Return how long after `moment_s` a change sent after it was answered; None: none yet."""
        found = [one.answered_s for one in self.answers if one.sent_s > moment_s]
        return min(found) - moment_s if found else None

    def wait_for_next(self, moment_s: float, seconds: float = 60) -> float:
        """Wait for the result of `next_after`."""
        wait_until("a change to be answered", lambda: self.next_after(moment_s) is not None, seconds)
        found = self.next_after(moment_s)
        assert found is not None
        return found

    def expected(self) -> tuple[set[str], set[str]]:
        """The topics that must be there now, and those that must not: whose changes were all answered."""
        there: set[str] = set()
        gone: set[str] = set()
        for one in self.changers:
            for answer in one.answers:
                (there if answer.creates else gone).add(answer.name)
        unknown = {name for one in self.changers for name in one.unknown} | {
            name for name, _ in self.refusals
        }
        return there - gone - unknown, gone


def _is_known(member: Member, there: set[str], gone: set[str]) -> bool:
    found = member.topics()
    if lacks := (there - found) | (gone & found):
        print(f"node {member.node_id} does not know what became of {lacks}")
    return not lacks


def _changes_in_log(member: Member) -> tuple[set[str], set[str]]:
    """The topics that were ever made, and those that were removed."""
    names: dict[UUID | None, str] = {}
    removed: set[str] = set()
    for path in sorted((member.data / "__cluster_metadata-0").glob("*.log")):
        log = path.read_bytes()
        whole = sum(header.size for header in complete_headers(log))
        for batch in decode_batches(log[:whole]):
            for record in (frame.record for frame in batch.frames):
                if isinstance(record, TopicRecord):
                    names[record.topic_id] = record.name
                elif isinstance(record, RemoveTopicRecord):
                    removed.add(names[record.topic_id])
    return set(names.values()), removed


def judge(changes: Changes, members: Sequence[Member]) -> None:
    """No change was refused that was not done, and what was answered is so, on each node."""
    changes.stop()
    rate = changes.rate
    made, removed = _changes_in_log(members[0])
    for name, code in changes.refusals:
        # A leader that resigns does not know what becomes of what it wrote last, and says that it does not
        # lead; the broker asks the next one, by whose log it was done. Kafka's clients are told so, too.
        done = {str(ErrorCode.topic_already_exists): made, str(ErrorCode.unknown_topic_or_partition): removed}
        assert name in done[code], (name, code)
    print(
        f"{len(changes.answers)} changes, {rate:.0f} a second; "
        f"asked for again after they were done: {changes.refusals}"
    )
    there, gone = changes.expected()
    assert len(there) > 10
    for one in members:
        wait_until(f"node {one.node_id} to know it", lambda one=one: _is_known(one, there, gone), 30)  # type: ignore[misc]
