"""Repair of topics with too few replicas: plans, reassigns a few at a time, waits until they are copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.base.clock import Clock
from service.cli.cluster_words import numbers
from service.cli.report import Report
from service.client.admin import ChangingCluster
from service.client.admin_models import Place
from service.client.cluster_health import PartitionState
from service.client.cluster_health_queries import ask_moving, partition_pages
from service.client.replica_widening import Widening, WideningPlan, batches, plan

LOOK_S: Final = 0.5
SETTLE_MS: Final = 15_000
"""Time for the queried broker to learn of the controller's changes."""


class Repair:
    """One repair of one cluster. Its methods return the problems, as texts, and report what they do: kinds
    `waited_for` and `partitions`."""

    def __init__(
        self,
        cluster: ChangingCluster,
        topics: Sequence[str],
        factor: int,
        clock: Clock,
        report: Report,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._factor = factor
        self._clock = clock
        self._report = report
        self._sleep = sleep

    def rehearse(self) -> Sequence[str]:
        """Print what `run` would do."""
        found, moving = self._plan()
        self._tell_moving(moving, [f"{_name(place)}: is already being reassigned" for place in moving])
        for one in found.steps:
            self._tell(one, "would become")
        if not found.steps and not moving and not found.problems:
            self._report.say(_whole(found))
        return found.problems

    def run(self, at_once: int, patience_s: int) -> Sequence[str]:
        """Add replicas, `at_once` partitions at a time. Gives up after `patience_s` without a completed
        one."""
        found, moving = self._plan()
        if moving:
            self._tell_moving(
                moving, [f"{len(moving)} partitions are already being reassigned: waiting for them"]
            )
            if waited := self._wait(moving, 0, len(moving), patience_s):
                return waited
            # Their new replicas may still be too few.
            found, _ = self._plan()
        problems = list(found.problems)
        if not found.steps and not problems:
            self._report.say(_whole(found))
        done = 0
        for batch in batches(found.steps, at_once):
            refused = self._cluster.reassign({one.place: one.after for one in batch})
            problems += [f"{_name(place)}: {why}" for place, why in refused.items()]
            accepted = [one for one in batch if one.place not in refused]
            for one in accepted:
                self._tell(one, "becomes")
            if waited := self._wait([one.place for one in accepted], done, len(found.steps), patience_s):
                return [*problems, *waited]
            problems += self._check(accepted)
            done += len(accepted)
        return problems

    def _tell(self, one: Widening, verb: str) -> None:
        topic, number = one.place
        words = f"{_name(one.place)}: {numbers(one.before)} {verb} {numbers(one.after)}"
        self._report.add(
            "partitions", words, topic=topic, partition=number, before=one.before, after=one.after
        )

    def _tell_moving(self, places: Sequence[Place], lines: Sequence[str]) -> None:
        for line in lines:
            self._report.say(line)
        for topic, number in places:
            self._report.keep("waited_for", topic=topic, partition=number)

    def _plan(self) -> tuple[WideningPlan, Sequence[Place]]:
        """Return the plan, and which of the topics' partitions are being reassigned."""
        brokers = self._cluster.describe().nodes
        moving = self._moving()
        partitions = [one for page in partition_pages(self._cluster, self._topics) for one in page]
        return plan(partitions, brokers, moving, self._factor), moving

    def _moving(self) -> Sequence[Place]:
        found = ask_moving(self._cluster)
        return [(one.topic, one.partition) for one in found if one.topic in self._topics]

    def _wait(self, places: Sequence[Place], done: int, of: int, patience_s: int) -> Sequence[str]:
        """Wait until none of these is being reassigned; return the problem of a timeout."""
        left, since = len(places), self._clock.monotonic_ms()
        while True:
            moving = frozenset(self._moving())
            still = [one for one in places if one in moving]
            if len(still) < left:
                left, since = len(still), self._clock.monotonic_ms()
                self._report.say(f"{done + len(places) - left} of {of} done")
            if not still:
                return ()
            if self._clock.monotonic_ms() - since >= 1000 * patience_s:
                names = ", ".join(map(_name, still))
                return (f"none was completed for {patience_s} s: {names}; run it again to wait",)
            self._sleep(LOOK_S)

    def _check(self, accepted: Sequence[Widening]) -> Sequence[str]:
        """Return the partitions that lack their new replicas: others may have cancelled a reassignment."""
        until = self._clock.monotonic_ms() + SETTLE_MS
        while True:
            now = self._states()
            short = [
                one for one in accepted
                if (state := now.get(one.place)) is None or not set(one.after) <= set(state.replicas)
            ]  # fmt: skip
            if not short:
                return ()
            if self._clock.monotonic_ms() >= until:
                return [f"{_name(one.place)} did not get {numbers(one.after)}" for one in short]
            self._sleep(LOOK_S)

    def _states(self) -> Mapping[Place, PartitionState]:
        return {
            (topic, one.partition): one
            for page in partition_pages(self._cluster, self._topics)
            for topic, one in page
        }


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _whole(found: WideningPlan) -> str:
    if not found.partitions:
        return "nothing to do: there are no internal topics yet"
    return f"nothing to do: each partition of the internal topics has {found.factor} replicas or more"
