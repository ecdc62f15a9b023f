"""Assignor `uniform` for differing subscriptions: loads as equal as possible, few partitions moved. [P]

1. Each member keeps its partitions of the topics that it subscribes to.
2. Each other partition goes to the subscriber with the least load; topics with the most partitions per
   subscriber come first.
3. While a partition can move from a member to one with a load at least two lower, it moves.
4. A partition that moved in vain returns: if its former owner has less load than the new one, or the two
   can swap. Then 3 again, if that made room.

Each move of 3 lowers the sum of the squared loads; each move of 4 does not raise it and lowers the number of
moved partitions. So the loop ends, and then no single move makes the loads more equal.

Source: Apache Kafka ``UniformHeterogeneousAssignmentBuilder``, which has 1 to 3.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final
from uuid import UUID

from service.base.steps import Steps
from service.groups.assignors.spec import GroupSpec, Target, Targets

_NOBODY: Final = -1
_MOST_ROUNDS: Final = 64


def assign(spec: GroupSpec) -> Steps[Targets]:
    """Return the targets of all members."""
    work = _Work(spec)
    yield from work.count_subscribers()
    yield from work.keep()
    yield from work.give_the_rest()
    for _ in range(_MOST_ROUNDS):
        yield from work.balance()
        if not (yield from work.send_home()):
            break
    return (yield from work.targets())


class _Work:
    """State of one assignment. Members and topics are their indexes in the spec."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.subscribers = [array("I") for _ in spec.topics]
        """arrays, which the garbage collector does not traverse: there may be a million of them"""
        self.held: list[dict[int, list[int]]] = [{} for _ in spec.topics]
        """partitions by member, of each topic"""
        self.homes: list[dict[int, int]] = [{} for _ in spec.topics]
        """previous owner of each partition that may keep it, by topic"""
        self.load = [0] * len(spec.members)
        self.order: list[int] = []
        """topics with subscribers, those with the most partitions per subscriber first"""

    def count_subscribers(self) -> Steps[None]:
        for index, member in enumerate(self.spec.members):
            yield
            for topic in member.topics:
                self.subscribers[topic].append(index)
        topics, subscribers = self.spec.topics, self.subscribers
        yield
        self.order = sorted(
            (topic for topic in range(len(topics)) if subscribers[topic]),
            key=lambda t: (-topics[t].partitions / len(subscribers[t]), len(subscribers[t]), t),
        )

    def keep(self) -> Steps[None]:
        index_of = {topic.topic_id: index for index, topic in enumerate(self.spec.topics)}
        for index, member in enumerate(self.spec.members):
            subscribed: set[int] | None = None
            for topic_id, numbers in member.target.items():
                yield
                topic = index_of.get(topic_id, _NOBODY)
                if topic == _NOBODY:
                    continue
                if subscribed is None:
                    subscribed = set(member.topics)
                if topic not in subscribed:
                    continue
                count, homes = self.spec.topics[topic].partitions, self.homes[topic]
                kept = [n for n in numbers if n < count and n not in homes]
                if kept:
                    homes.update(dict.fromkeys(kept, index))
                    self.held[topic][index] = kept
                    self.load[index] += len(kept)

    def give_the_rest(self) -> Steps[None]:
        load, members = self.load, len(self.spec.members)
        ranks = [count * members + index for index, count in enumerate(load)]
        """load and index of each member in one number, so that most of the work is done in C"""
        for topic in self.order:
            homes, held = self.homes[topic], self.held[topic]
            yield
            rest = [n for n in range(self.spec.topics[topic].partitions) if n not in homes]
            if not rest:
                continue
            yield
            least = list(map(ranks.__getitem__, self.subscribers[topic]))
            heapify(least)
            for number in rest:
                index = least[0] % members
                held.setdefault(index, []).append(number)
                load[index] += 1
                ranks[index] += members
                heapreplace(least, ranks[index])

    def balance(self) -> Steps[None]:
        for _ in range(_MOST_ROUNDS):
            moved = 0
            # No move lowers the least load.
            least = min(self.load, default=0)
            for topic in self.order:
                yield
                moved += yield from self._balance_topic(topic, least)
            if not moved:
                return

    def _balance_topic(self, topic: int, least_load: int) -> Steps[int]:
        """Move partitions to members with a load at least two lower than their owner's; returns how many. No
        load is below `least_load`."""
        load, held = self.load, self.held[topic]
        if not held:
            return 0
        most_load = max(map(load.__getitem__, held))
        if most_load - least_load < 2:
            return 0
        yield
        if most_load - min(map(load.__getitem__, self.subscribers[topic])) < 2:
            return 0
        yield
        least = [(load[index], index) for index in self.subscribers[topic]]
        most = [(-load[index], -index) for index in held]
        heapify(least)
        heapify(most)
        moved = 0
        while True:
            # Skip entries of previous loads: every change pushes a new one.
            while -most[0][0] != load[-most[0][1]] or -most[0][1] not in held:
                heappop(most)
                if not most:
                    return moved
            while least[0][0] != load[least[0][1]]:
                heappop(least)
            rich, poor = -most[0][1], least[0][1]
            if load[rich] - load[poor] < 2:
                return moved
            if moved % 64 == 63:
                yield
            self._move(topic, held[rich][-1], rich, poor)
            moved += 1
            heappush(most, (-load[rich], -rich))
            heappush(most, (-load[poor], -poor))
            heappush(least, (load[rich], rich))
            heappush(least, (load[poor], poor))

    def send_home(self) -> Steps[int]:
        """Return moved partitions to their previous owners; returns how many."""
        away: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(topic, partition) by previous and new owner"""
        for topic in self.order:
            homes = self.homes[topic]
            if not homes:
                continue
            yield
            for index, numbers in self.held[topic].items():
                for number in numbers:
                    home = homes.get(number, index)
                    if home != index:
                        away.setdefault((home, index), []).append((topic, number))
        returned = 0
        for (home, index), moved in away.items():
            yield
            back = away.get((index, home), [])
            while moved and (back or self.load[index] > self.load[home]):
                self._move(*moved.pop(), index, home)
                returned += 1
                if back and self.load[home] > self.load[index]:
                    self._move(*back.pop(), home, index)
                    returned += 1
        return returned

    def _move(self, topic: int, number: int, giver: int, taker: int) -> None:
        held = self.held[topic]
        numbers = held[giver]
        numbers.remove(number)
        if not numbers:
            del held[giver]
        held.setdefault(taker, []).append(number)
        self.load[giver] -= 1
        self.load[taker] += 1

    def targets(self) -> Steps[Targets]:
        targets: list[dict[UUID, tuple[int, ...]]] = [{} for _ in self.spec.members]
        for topic, held in enumerate(self.held):
            yield
            topic_id = self.spec.topics[topic].topic_id
            for index, numbers in held.items():
                targets[index][topic_id] = tuple(sorted(numbers))
        result: dict[str, Target] = {
            member.member_id: target for member, target in zip(self.spec.members, targets, strict=True)
        }
        return result
