"""Every call of the store amid a merge and an order to erase keys fails: `python -m simulator.rewrite_sweep`.

One node has one partition, with a chain in the bucket, tails, cuts and a local log. From the moment at which
the work begins until nothing of it is left to do, the k-th call of the store fails, for every k: once, or for
that key until all faults end, or it is done and its answer is lost. Then the work has to end by itself: all
records that no order names are there, `firn fsck` finds nothing, and erased keys are in no object or file.

What comes before the fault is played once for all cases: the process is forked at each call (`sweep.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final, NamedTuple

import service.inspect.fsck  # loaded once, before the first fork
from service.remote.format.erase_codec import NO_TIME, encode_erasure
from service.wire.erasures import ErasureOp, ErasuresRequest
from simulator.apart import apart
from simulator.cluster.acts import create
from simulator.cluster.client import produce, values_of
from simulator.cluster.examining import revive
from simulator.cluster.rewrite_acts import RewritingWorld, ask_keeper, new_order
from simulator.cluster.world import START_S
from simulator.faults import DrawnStoreFaults
from simulator.model import TopicModel, Violation
from simulator.store import Verdict
from simulator.sweep import BROKEN, QUIET, TOLD, UNREACHED, Case, Forks, Result
from simulator.topics import NOBODY

_ = service.inspect.fsck

_SEED: Final = 4
_HEALS_S: Final = 20.0
"""after its first strike a fault of one key ends"""
_ENDS_S: Final = 1500.0
"""longest time of all that is done: a rewrite whose intent is left is given up after ten minutes"""
_ARCHIVED_S: Final = 60.0
_LOOK_S: Final = 0.5
_GONE_S: Final = 8.0
"""more than the grace of what a merge has replaced"""
_READS: Final = ("get", "get_range", "get_suffix", "head", "list")
_CASES_AT_A_TIME: Final = 60
"""in one process; what comes before the first of them is played once"""
_SETTINGS: Final = {
    "firn.cut.interval.ms": "1000",
    "firn.tail.wait.ms": "0",
    "metadata.max.idle.interval.ms": "5000",
    "offsets.topic.replication.factor": "1",
}
_CONFIGS: Final = {
    "internal.segment.bytes": "1500",
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
    "remote.storage.enable": "true",
    "local.retention.bytes": "6000",
}
_BATCHES: Final = 36
_LEAST_SEGMENTS: Final = 9
"""a merge begins with eight"""
_ERASED: Final = (b"user-1", b"user-2")


class Work(NamedTuple):
    """Work that is swept: it begins with one call, and is over by itself. `left` says what is left to do."""

    name: str
    settings: dict[str, str]
    begin: Callable[[SweptWorld], Awaitable[None]]
    left: Callable[[SweptWorld], str]


class SweptWorld(RewritingWorld):
    """A cluster of one node with one partition, in which nothing is drawn. Made and used on its own loop."""

    def __init__(self, work: Work, faults: CallFaults) -> None:
        self._own = {**_SETTINGS, **work.settings}
        super().__init__(_SEED, nodes=1, tiered=True)
        (machine,) = self.machines
        machine.clock.rate = 1.0
        faults.world = self
        machine.store_faults = self.store_faults[machine.name] = faults
        self.topic = TopicModel("t", NOBODY, [], True, False, -1, deleted=True)

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {**super()._drawn_settings(random), **self._own}

    async def prepare(self) -> None:
        """Start the node, and have a chain of small segments in the bucket, and cuts with tails."""
        (machine,) = self.machines
        self.start(machine)
        if not await self.until_ready(machine, START_S):
            raise Violation("the node does not become ready")
        self.topics.append(self.topic)
        await create(self, machine, self.topic, 1, 1, _CONFIGS)
        random = Random(_SEED)
        for count in (_BATCHES, 2):
            batches = [values_of(self, 2, 200) for _ in range(count)]
            (partition,) = self.topic.partitions
            await produce(self, random, self.topic, partition, batches, idempotent=False)
            await self._until(self._why_not_archived)

    def _why_not_archived(self) -> str:
        (partition,) = self.topic.partitions
        key = self.topic.topic_id, partition.index
        seen = self.oracle.replicas.seen.get((1, key))
        if seen is None or not self.archived_end(key):
            return "nothing is archived"
        if why := self.oracle.tiers.not_copied([(key, seen.partition)]):
            return why
        rows = [cut.topics.get(key[0], ()) for cut in self.oracle.cuts.complete_ones()]
        if not rows or not rows[-1] or rows[-1][0].end < seen.end:
            return f"no complete cut has all up to {seen.end}"
        return ""

    async def _until(self, why_not: Callable[[], str]) -> None:
        until_s = self.loop.now_s + _ARCHIVED_S
        while why := why_not():
            if self.loop.now_s > until_s:
                raise Violation(f"not after {_ARCHIVED_S:.0f} s: {why}")
            await asyncio.sleep(_LOOK_S)

    def segments(self) -> int:
        """Return the number of segments of the chain that HEAD names."""
        keys, _ = self.archive.live(self.topic.topic_id, 0)
        return sum(key.endswith(".seg") for key in keys)


# A merge


async def _let_merge(world: SweptWorld) -> None:
    """Do nothing: a run is merged once it is old enough."""


def _left_of_merge(world: SweptWorld) -> str:
    if not world.rewrites.merged:
        return "nothing is merged"
    if world.rewrites.intents:
        return "an intent is left"
    if world.segments() >= _LEAST_SEGMENTS:
        return f"HEAD names {world.segments()} segments"
    return ""


# An order to erase keys


async def _erase(world: SweptWorld) -> None:
    """Give an order for all that is there, again until it is taken."""
    random = Random(_SEED)
    order, known = new_order(world, random, [world.topic], list(_ERASED), NO_TIME, lambda _, end: end)
    world.erasures.ask(known)
    request = ErasuresRequest(op=int(ErasureOp.START), id=order.id, order=encode_erasure(order))
    until_s = world.loop.now_s + _ENDS_S
    while order.id not in world.image().erasures:
        await ask_keeper(world, random, request, "erase")
        if world.loop.now_s > until_s:
            raise Violation(f"the order is not taken within {_ENDS_S:.0f} s")


def _left_of_erasure(world: SweptWorld) -> str:
    for one in world.image().erasures.values():
        return "the order is open" if one.is_open else "the order is done, and not removed"
    if any(key.startswith("erase/") for key in world.bucket.objects):
        return "the order's document is there"
    return ""


_UNMERGED: Final = {"firn.merge.small.bytes": "1"}
WORKS: Final = {
    one.name: one
    for one in (
        Work("merge", {"firn.merge.min.age.ms": "15000"}, _let_merge, _left_of_merge),
        Work("erasure", _UNMERGED, _erase, _left_of_erasure),
    )
}


# The fault


class CallFaults(DrawnStoreFaults):
    """`simulator.store.StoreFaults`: one call fails, and later ones like it for the same key where it is for
    ever, until all faults end."""

    world: SweptWorld

    def __init__(self, forks: Forks, seen: list[tuple[str, str]] | None = None) -> None:
        self._forks = forks
        self._seen = seen
        self._calls = 0
        self.is_armed = False
        self.call: tuple[str, str] | None = None
        """which failed first"""
        self._until_s = 0.0
        self.on, self.lasting = set(), None
        self.struck, self.has_flipped = 0, False

    def judge(self, call: str, key: str) -> Verdict:
        if not self.is_armed:
            return Verdict.DONE
        self._calls += 1
        if self._seen is not None:
            self._seen.append((call, key))
        now_s = self.world.loop.now_s
        case = self._forks.at("store", self._calls)
        if case is not None:
            self.call, self._until_s = (call, key), now_s + _HEALS_S
            return Verdict[case.what]
        case = self._forks.case
        is_struck = case is not None and case.forever and self.call == (call, key) and now_s < self._until_s
        return Verdict[case.what] if is_struck and case is not None else Verdict.DONE

    def latency_s(self, call: str) -> float:
        return 0.0


def cases_of(calls: Sequence[tuple[str, str]]) -> list[Case]:
    """Return all cases of these calls: a read whose answer is lost is one that fails."""
    found = []
    for number, (call, _) in enumerate(calls, 1):
        found.append(_case(number, call, Verdict.FAILS))
        found.append(_case(number, call, Verdict.FAILS, forever=True))
        if call not in _READS:
            found.append(_case(number, call, Verdict.LOST))
            found.append(_case(number, call, Verdict.LATE))
    return found


def _case(number: int, call: str, verdict: Verdict, *, forever: bool = False) -> Case:
    return Case("store", number, call, verdict.name, forever, "goes on")


# One run


def dry_run(work: Work) -> list[tuple[str, str]]:
    """Play it without a fault; return its calls of the store."""
    seen: list[tuple[str, str]] = []
    player = Player(work, (), seen)
    player.play()
    return seen


class Player:
    """Plays one work; where cases begin, a child plays each of them to its end."""

    def __init__(self, work: Work, cases: Iterable[Case], seen: list[tuple[str, str]] | None = None) -> None:
        self.forks = Forks(cases)
        self._work = work
        self._faults = CallFaults(self.forks, seen)
        self._world = SweptWorld(work, self._faults)
        self.forks.loop = self._world.loop

    def play(self) -> list[Result]:
        """Play the work in this process, which `apart` ends afterwards."""
        return self.forks.play(lambda: self._world.run(self._main()), self._result, self._work.name)

    def _result(self, case: Case, problem: str | None, *, is_told: bool) -> Result:
        if problem is None:
            return Result(case, TOLD if is_told else QUIET, None)
        return Result(case, BROKEN, f"{' '.join(self._faults.call or ())}: {problem}")

    async def _main(self) -> None:
        world, work = self._world, self._work
        await world.prepare()
        if world.segments() < _LEAST_SEGMENTS:
            raise Violation(f"there are {world.segments()} segments")
        self._faults.is_armed = True
        await work.begin(world)
        until_s = world.loop.now_s + _ENDS_S
        while why := work.left(world):
            world.ended_for_reasons()
            if world.loop.now_s > until_s:
                raise Violation(f"after {_ENDS_S:.0f} s {why}")
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_GONE_S)
        self._faults.is_armed = False
        await revive(world, Random(_SEED))
        _no_key_is_left(world)


def _no_key_is_left(world: SweptWorld) -> None:
    """T26: no object and no file has a key of an order."""
    if not world.erasures.orders:
        return
    (machine,) = world.machines
    files = [one for log_dir in machine.log_dirs for one in machine.platter.files(log_dir)]
    places: list[tuple[str, Any]] = [(path, file.data) for path, file in files]
    places += [(key, found.data) for key, found in sorted(world.bucket.objects.items())]
    for where, data in places:
        for key in _ERASED:
            if key in data:
                raise Violation(f"T26: {key.decode()} is in {where}")


def run_cases(work: Work, cases: Iterable[Case]) -> list[Result]:
    """Play these, in a process of their own."""
    return apart(lambda: Player(work, cases).play())


# All runs


def main(arguments: list[str] | None = None) -> int:
    """0 when no run broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m simulator.rewrite_sweep", description=__doc__)
    parser.add_argument("--works", default=",".join(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--every", type=int, default=1, help="one case of so many; 1: all")
    parser.add_argument("--first", type=int, default=0, help="and the first of them, from 0 on")
    parser.add_argument("--call", type=int, help="of this call alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=10, help="broken promises that are told, of each work")
    given = parser.parse_args(arguments)
    if unknown := set(given.works.split(",")) - WORKS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    is_clean = True
    for name in given.works.split(","):
        is_clean &= _sweep(WORKS[name], given)
    return 0 if is_clean else 1


def _sweep(work: Work, given: argparse.Namespace) -> bool:
    began = time.monotonic()
    calls = apart(lambda: dry_run(work))
    kinds = Counter(call for call, _ in calls)
    cases = cases_of(calls)[given.first :: given.every]
    if given.call is not None:
        cases = [case for case in cases if case.call == given.call]
    said = ", ".join(f"{count} {call}" for call, count in sorted(kinds.items()))
    print(f"{work.name}: {len(calls)} calls of the store ({said}); {len(cases)} cases", flush=True)
    count = min(len(cases), max(given.jobs, len(cases) // _CASES_AT_A_TIME))
    pieces = [cases[len(cases) * at // count : len(cases) * (at + 1) // count] for at in range(count)]
    results: list[Result] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for piece in pool.map(lambda some: run_cases(work, some), pieces):
            results += piece
            bad = sum(result.problem is not None for result in results)
            seconds = time.monotonic() - began
            print(f"{len(results)} of {len(cases)}: {bad} broke a promise, {seconds:.0f} s", flush=True)
    broken = [result for result in results if result.problem is not None]
    for result in broken[: given.show]:
        print(f"BROKEN: {result.case}\n        {result.problem}")
    outcomes = Counter(result.outcome for result in results)
    told = ", ".join(f"{outcomes[one]} {one}" for one in (QUIET, TOLD, UNREACHED, BROKEN) if outcomes[one])
    print(f"{work.name}: {len(results)} cases in {time.monotonic() - began:.0f} s: {told}", flush=True)
    return not broken and not outcomes[UNREACHED]


if __name__ == "__main__":
    sys.exit(main())
