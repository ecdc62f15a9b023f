"""Replicas that move while something else goes on: to other brokers, to more and to fewer, in another order,
under a throttle, and back again; leaders with them.

A `Mover` asks for all that on a thread of its own, of whichever broker, by a seed. Who kills brokers
meanwhile asks it to be `still` where all is to be in sync.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from service.wire.errors import WireError
from tests.support.processes import wait_until
from tests.support.quorums import Member
from tests.support.replicas import Nodes, State, states

Place = tuple[str, int]
"""topic and partition"""

_TOPIC, _BROKER = 2, 4
"""what settings are of, in requests"""
_SET, _DELETE = 0, 1
RATES: Final = (300_000, 1_000_000, 20_000_000)
"""Bytes per second of a throttle: more than is produced, or what moves never catches up."""
_THROTTLE_S: Final = 15.0
"""after so long one is taken back at the latest"""
_ANSWER_S: Final = 4.0
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

_TO_COME: Final = frozenset(
    {ErrorCode.none, ErrorCode.not_controller, ErrorCode.request_timed_out, ErrorCode.broker_not_available}
)
"""Answers to anything that may be asked while controllers come and go."""
_NOT_NOW: Final = {
    # a broker that is fenced, or who would be left is not in sync
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        ErrorCode.invalid_replica_assignment,
        ErrorCode.no_reassignment_in_progress,
    },
    ApiKey.ELECT_LEADERS: {
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.eligible_leaders_not_available,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: set[ErrorCode](),
    ApiKey.CREATE_PARTITIONS: set[ErrorCode](),
}


class Mover:
    """Moves replicas of topics among all brokers, from `least` to `most` of each partition. For a `with`."""

    def __init__(
        self,
        cluster: Nodes,
        topics: Sequence[str],
        source: random.Random,
        *,
        least: int = 2,
        most: int = 3,
    ) -> None:
        """`least`: not fewer than must be in sync."""
        self.done: Counter[str] = Counter()
        """what was answered, by what was asked; and what was not"""
        self.wrong: list[str] = []
        """answers that nothing excuses"""
        self._cluster, self._topics, self._source = cluster, topics, source
        self._brokers = {
            one.node_id: one for one in cluster.members.values() if "broker" in one.settings["process.roles"]
        }
        self._least, self._most = least, min(most, len(self._brokers))
        self._throttled_s = 0.0
        """since when there is a throttle; 0: there is none"""
        self._lock = threading.Lock()
        """held by who asks for something, and while nothing may be asked"""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    @contextlib.contextmanager
    def still(self, seconds: float = 120) -> Iterator[None]:
        """All that was begun has ended, no throttle is left, and nothing else begins. All brokers run."""
        with self._lock:
            if self._throttled_s:
                wait_until("all throttles to be taken back", self._unthrottle, seconds)
            left: list[Place] | None = None

            def have_ended() -> bool:
                nonlocal left
                left = self._under_way()
                return left == []

            try:
                wait_until("all reassignments to end", have_ended, seconds)
            except AssertionError as e:
                told = {topic: states(self._any(), topic) for topic in self._topics}
                logs = "\n".join(one.log() for one in self._cluster.members.values())
                raise AssertionError(f"{e}: {left} of {told}; {logs}") from e
            assert not self.wrong, self.wrong[:5]
            yield

    def grow(self, topic: str, count: int) -> None:
        """Add partitions to a topic that has fewer, while all is `still`."""
        module = request_module(ApiKey.CREATE_PARTITIONS)
        message = module.CreatePartitionsRequest(
            topics=(module.CreatePartitionsTopic(name=topic, count=count, assignments=None),),
            timeout=timedelta(seconds=_ANSWER_S),
            validate_only=False,
        )

        def is_so() -> bool:
            self._ask(ApiKey.CREATE_PARTITIONS, message, self._any(), "partitions made", _results)
            return all(len(states(one, topic)) == count for one in self._brokers.values() if one.is_running)

        wait_until(f"{count} partitions of {topic}", is_so, 60)

    # -- what it does

    def _run(self) -> None:
        kinds: Sequence[tuple[int, Callable[[], None]]] = (
            (5, self._move),
            (2, self._reorder),
            (2, self._call_off),
            (3, self._elect),
            (2, self._move_slowly),
        )
        weights = [weight for weight, _ in kinds]
        while not self._over.wait(self._source.uniform(0.1, 1)):
            with self._lock:
                is_due = time.monotonic() > self._throttled_s + _THROTTLE_S or self._source.random() < 0.3
                # a broker that cannot be asked keeps its throttle, and nothing else waits for that
                if not self._throttled_s or not is_due or not self._unthrottle():
                    ((_, do),) = self._source.choices(kinds, weights)
                    do()

    def _any(self) -> Member:
        running = [one for one in self._brokers.values() if one.is_running]
        return self._source.choice(running or list(self._brokers.values()))

    def _found(self) -> dict[Place, State]:
        """Return a broker's description of the topics; nothing if it does not answer."""
        member, found = self._any(), {}
        with contextlib.suppress(OSError):
            for topic in self._topics:
                found.update({(topic, index): one for index, one in states(member, topic, _ANSWER_S).items()})
        return found

    def _some(self, places: Iterable[Place]) -> list[Place]:
        """One of them at least, if there is any."""
        all_of_them = sorted(places)
        return self._source.sample(
            all_of_them, self._source.randint(min(1, len(all_of_them)), len(all_of_them))
        )

    def _placed(self) -> tuple[int, ...]:
        ids = sorted(self._brokers)
        return tuple(self._source.sample(ids, self._source.randint(self._least, self._most)))

    def _move(self) -> None:
        self._reassign({place: self._placed() for place in self._some(self._found())}, "moves")

    def _reorder(self) -> None:
        found = self._found()
        orders = {}
        for place in self._some(found):
            replicas = found[place].replicas
            orders[place] = tuple(self._source.sample(replicas, len(replicas)))
        self._reassign(orders, "orders")

    def _call_off(self) -> None:
        if under_way := self._under_way():
            self._reassign(dict.fromkeys(self._some(under_way)), "called off")

    def _elect(self) -> None:
        module = request_module(ApiKey.ELECT_LEADERS)
        by_topic: dict[str, list[int]] = {}
        for topic, index in self._some(self._found()):
            by_topic.setdefault(topic, []).append(index)
        message = module.ElectLeadersRequest(
            election_type=0,
            topic_partitions=tuple(
                module.TopicPartitions(topic=topic, partitions=tuple(sorted(indexes)))
                for topic, indexes in by_topic.items()
            ),
            timeout=timedelta(seconds=_ANSWER_S - 1),
        )

        def told(answer: Any) -> Iterator[tuple[ErrorCode, object]]:
            yield answer.error_code, answer
            for topic in answer.replica_election_results:
                yield from ((one.error_code, one) for one in topic.partition_result)

        if by_topic:
            self._ask(ApiKey.ELECT_LEADERS, message, self._any(), "elections", told)

    def _move_slowly(self) -> None:
        """Set throttles on topics and brokers, as `kafka-reassign-partitions --throttle`, then move."""
        found = self._found()
        moves = {place: self._placed() for place in self._some(found)}
        self._throttled_s = time.monotonic()
        for topic in {topic for topic, _ in moves}:
            of_leader, of_follower = set(), set()
            for (name, index), target in moves.items():
                if name == topic:
                    of_leader |= {f"{index}:{broker}" for broker in found[name, index].replicas}
                    of_follower |= {
                        f"{index}:{broker}" for broker in {*target}.difference(found[name, index].replicas)
                    }
            lists = (",".join(sorted(of_leader)), ",".join(sorted(of_follower)))
            self._set(self._any(), _TOPIC, topic, dict(zip(_LISTS, lists, strict=True)))
        rate = str(self._source.choice(RATES))
        for member in self._brokers.values():
            self._set(member, _BROKER, str(member.node_id), dict.fromkeys(_RATES, rate))
        self._reassign(moves, "moves under a throttle")

    def _unthrottle(self) -> bool:
        """Remove the throttles; return whether all brokers answered."""
        done = [self._set(self._any(), _TOPIC, topic, dict.fromkeys(_LISTS)) for topic in self._topics]
        done += [
            self._set(one, _BROKER, str(one.node_id), dict.fromkeys(_RATES)) for one in self._brokers.values()
        ]
        if all(done):
            self._throttled_s = 0.0
        return all(done)

    # -- how it asks

    def _reassign(self, wanted: Mapping[Place, tuple[int, ...] | None], what: str) -> None:
        module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        by_topic: dict[str, list[Any]] = {}
        for (topic, index), replicas in wanted.items():
            one = module.ReassignablePartition(partition_index=index, replicas=replicas)
            by_topic.setdefault(topic, []).append(one)
        message = module.AlterPartitionReassignmentsRequest(
            topics=tuple(
                module.ReassignableTopic(name=topic, partitions=tuple(each))
                for topic, each in by_topic.items()
            ),
            timeout=timedelta(seconds=_ANSWER_S - 1),
        )

        def told(answer: Any) -> Iterator[tuple[ErrorCode, object]]:
            yield answer.error_code, answer
            for topic in answer.responses:
                yield from ((one.error_code, one) for one in topic.partitions)

        if by_topic:
            self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message, self._any(), what, told)

    def _set(self, member: Member, kind: int, name: str, values: Mapping[str, str | None]) -> bool:
        """Settings of a topic or a broker, which is asked itself; None takes one back. Whether it is done."""
        module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        configs = tuple(
            module.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in values.items()
        )
        message = module.IncrementalAlterConfigsRequest(
            resources=(module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs),),
            validate_only=False,
        )
        return self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, message, member, "settings", _results)

    def _ask(
        self,
        api_key: ApiKey,
        message: Any,
        member: Member,
        what: str,
        codes: Callable[[Any], Iterator[tuple[ErrorCode, object]]],
    ) -> bool:
        """Send a move; return whether all of it was accepted, and note forbidden answers."""
        try:
            with _client(member) as client:
                told = list(codes(client.request(api_key, message)))
        except OSError:
            self.done["unanswered"] += 1
            return False
        except (RequestError, WireError) as e:
            self.wrong.append(f"{what}, asked of {member.node_id}: {e!r}")
            return False
        for code, where in told:
            if code not in _TO_COME | _NOT_NOW[api_key]:
                self.wrong.append(f"{what}, asked of {member.node_id}: {code.name}, {where}")
        refused = sorted({code.name for code, _ in told if code is not ErrorCode.none})
        self.done[f"{what}: {', '.join(refused)}" if refused else what] += 1
        return not refused

    def _under_way(self) -> list[Place] | None:
        """Partitions of the topics that are reassigned; None: nobody tells."""
        module = request_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        message = module.ListPartitionReassignmentsRequest(
            timeout=timedelta(seconds=_ANSWER_S - 1), topics=None
        )
        try:
            with _client(self._any()) as client:
                answer = client.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, message)
        except OSError:
            return None
        if answer.error_code is not ErrorCode.none:
            return None
        return [
            (topic.name, one.partition_index)
            for topic in answer.topics
            for one in topic.partitions
            if topic.name in self._topics
        ]


def _client(member: Member) -> BlockingClient:
    host, _, port = member.bootstrap.rpartition(":")
    return BlockingClient(host, int(port), "mover", timeout_s=_ANSWER_S)


def _results(answer: Any) -> Iterator[tuple[ErrorCode, object]]:
    results = answer.results if hasattr(answer, "results") else answer.responses
    yield from ((one.error_code, one) for one in results)


# -- what the disks must say


def places(cluster: Nodes, topics: Iterable[str]) -> dict[Place, tuple[int, ...]]:
    """Replicas by partition, as a broker that runs tells."""
    member = next(
        one
        for one in cluster.members.values()
        if one.is_running and "broker" in one.settings["process.roles"]
    )
    return {(topic, index): one.replicas for topic in topics for index, one in states(member, topic).items()}


def wait_placed(cluster: Nodes, wanted: Mapping[Place, Collection[int]], seconds: float = 60) -> int:
    """Until replicas have directories where they should be, and nobody else has any, nor one that is to be
    deleted. How many were set aside: their brokers did not see them go, and do not delete them."""
    wrong: list[str] = []

    def are_there() -> bool:
        wrong[:] = [line for member in cluster.members.values() for line in _misplaced(member, wanted)]
        return not wrong

    try:
        wait_until("directories of replicas, and of nobody else", are_there, seconds)
    except AssertionError as e:
        raise AssertionError(f"{e}: {wrong}") from e
    return sum(
        one.name.endswith("-stray")
        for member in cluster.members.values()
        for home in member.directories
        for one in home.iterdir()
    )


def _misplaced(member: Member, wanted: Mapping[Place, Collection[int]]) -> Iterator[str]:
    topics = {topic for topic, _ in wanted}
    found: set[Place] = set()
    for path in (one for home in member.directories for one in home.iterdir() if one.is_dir()):
        name = re.fullmatch(r"(.*)-(\d+)(\.[0-9a-f]+-delete)?", path.name)
        if name is not None and name[1] in topics:
            place = name[1], int(name[2])
            found.add(place)
            if name[3] or member.node_id not in wanted[place]:
                yield f"{path} at {member.node_id}"
    for place, replicas in wanted.items():
        if member.node_id in replicas and place not in found:
            yield f"none of {place} at {member.node_id}"
