"""Every call, every error; every bit: `python -m simulator.sweep`, one fixed workload again and again.

The k-th call of the disk fails, for every k and every errno that the call can return, once or from then on;
likewise the k-th call of the store, in each way in which a store fails. Then the node goes on, is stopped
or is killed, and is started again without the fault, when everything must be there. And one bit of one
file or object flips, while the node is down or while it runs: it must be noticed, or make no difference.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import errorcode
from pathlib import Path, PurePath
from random import Random
from typing import Final, NamedTuple

from service.records.batch import Codec
from simulator import acts
from simulator.apart import apart
from simulator.client import NoAnswer
from simulator.disk import ERRNOS
from simulator.loop import Stuck
from simulator.machine import State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.sending import send, send_idempotent
from simulator.store import Verdict
from simulator.world import METADATA, SETTINGS, SimWorld

ENDINGS: Final = ("goes on", "stop", "kill")
_READS: Final = ("get", "get_range", "get_suffix")


class Case(NamedTuple):
    """One run. `call`: which call fails, from 1 on; `what`: an errno or a verdict's name; or a bit of a
    path."""

    kind: str
    call: int
    name: str
    what: str
    forever: bool
    ending: str
    position: int = 0

    def __str__(self) -> str:
        if self.kind == "bit":
            return f"bit {self.position} of {self.name}, {self.ending}"
        often = "from then on" if self.forever else "once"
        return f"{self.kind} call {self.call}, {self.name}: {self.what}, {often}; then {self.ending}"


class Result(NamedTuple):
    """How a run went: `outcome` in a word or two, `problem` where a promise was broken."""

    case: Case
    outcome: str
    problem: str | None


class DiskAt:
    """`simulator.disk.DiskFaults`: one call fails, and those of its name after it where it is for ever."""

    def __init__(self, case: Case | None, seen: list[tuple[str, Path]] | None = None) -> None:
        self._case = case
        self._seen = seen
        self._calls = 0
        self.struck = False
        self.on: set[str] = set()

    def fail(self, call: str, path: Path) -> int | None:
        self._calls += 1
        if self._seen is not None:
            self._seen.append((call, path))
        case = self._case
        if case is None or case.kind != "disk" or not self.on:
            return None
        if self._calls == case.call or (self.struck and case.forever and call == case.name):
            self.struck = True
            return int(case.what)
        return None

    def slow_s(self, call: str) -> float:
        return 0.0

    def part(self, size: int) -> int:
        return size // 2

    def drops_dirty(self) -> bool:
        return True


class StoreAt:
    """`simulator.store.StoreFaults`, likewise."""

    def __init__(self, case: Case | None, seen: list[tuple[str, str]] | None = None) -> None:
        self._case = case
        self._seen = seen
        self._calls = 0
        self.struck = False
        self.on: set[str] = set()

    def judge(self, call: str, key: str) -> Verdict:
        self._calls += 1
        if self._seen is not None:
            self._seen.append((call, key))
        case = self._case
        if case is None or case.kind != "store" or not self.on:
            return Verdict.DONE
        if self._calls == case.call or (self.struck and case.forever and call == case.name):
            self.struck = True
            return Verdict[case.what]
        return Verdict.DONE

    def latency_s(self, call: str) -> float:
        return 0.0


# The workload

CONFIGS: Final = {"internal.segment.bytes": "700", "file.delete.delay.ms": "1000", "retention.ms": "-1"}
TIERED: Final = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


async def _create(world: SimWorld, name: str, configs: dict[str, str], *, flushed: bool = False) -> None:
    if not await world.ensure_running():
        return
    configs = {**CONFIGS, **configs, **({"flush.messages": "1"} if flushed else {})}
    try:
        error, topic_id = await world.client.create_topic(name, 1, configs)
    except NoAnswer:
        return
    if topic_id is not None and error.value == 0:
        tiered = "remote.storage.enable" in configs
        world.topics.append(TopicModel(name, topic_id, [PartitionModel(name, 0)], tiered, flushed, -1))


async def _produce(world: SimWorld, name: str, *, idempotent: bool = False) -> None:
    if not await world.ensure_running():
        return
    for topic, partition in list(world.partitions()):
        if topic.name == name:
            batches = []
            for _ in range(6):
                world.values += 2
                batches.append([b"v%d." % (world.values - 1) + bytes(150), b"v%d." % world.values])
            work = send_idempotent if idempotent else send
            await work(world, topic, partition, batches, Codec.NONE)


async def _settle(world: SimWorld) -> None:
    await asyncio.sleep(4.0)


async def _alter(world: SimWorld) -> None:
    if await world.ensure_running():
        for _ in range(3):
            await acts.alter_topic(world, Random(1))


async def _delete(world: SimWorld) -> None:
    if await world.ensure_running() and len(world.topics) > 1:
        world.topics[-1].deleted = True
        try:
            await world.client.delete_topic(world.topics[-1].topic_id)
        except NoAnswer:
            return


async def _restart(world: SimWorld) -> None:
    await world.stop()
    world.machine.kill()
    await world.ensure_running()


STEPS: Final[Sequence[Callable[[SimWorld], object]]] = (
    lambda world: _create(world, "plain", {}),
    lambda world: _create(world, "sure", {}, flushed=True),
    lambda world: _create(world, "cold", TIERED),
    lambda world: _produce(world, "plain"),
    lambda world: _produce(world, "sure", idempotent=True),
    lambda world: _produce(world, "cold"),
    _settle,
    _alter,
    lambda world: _create(world, "gone", TIERED),
    lambda world: _produce(world, "gone"),
    lambda world: _produce(world, "cold", idempotent=True),
    _settle,
    _delete,
    _restart,
    lambda world: _produce(world, "sure"),
    lambda world: _produce(world, "cold"),
    _settle,
)


# One run


def _world(disk: DiskAt, store: StoreAt) -> SimWorld:
    world = SimWorld(1, log_dirs=2)
    world.faults = world.machine.faults = disk  # type: ignore[assignment]
    world.store_faults = world.machine.store_faults = store  # type: ignore[assignment]
    world.settings = {**SETTINGS, "log.dirs": world.settings["log.dirs"]}
    world.settings["metadata.log.max.record.bytes.between.snapshots"] = "1500"
    return world


def dry_run() -> tuple[
    list[tuple[str, Path]], list[tuple[str, str]], list[tuple[str, int]], list[tuple[str, int]]
]:
    """What the workload calls, of the disk and of the store; then the files and objects that it leaves, and
    their sizes."""
    disk_calls: list[tuple[str, Path]] = []
    store_calls: list[tuple[str, str]] = []
    world = _world(DiskAt(None, disk_calls), StoreAt(None, store_calls))

    async def main() -> None:
        await world.start()
        for step in STEPS:
            await step(world)  # type: ignore[misc]
        await world.revive()

    world.run(main())
    files = [
        (path, len(file.data))
        for log_dir in world.machine.log_dirs
        for path, file in world.machine.platter.files(PurePath(log_dir))
    ]
    objects = [(key, len(found.data)) for key, found in sorted(world.bucket.objects.items())]
    return disk_calls, store_calls, files, objects


def run_case(case: Case) -> Result:
    """Play the workload with this fault, in this process."""
    disk, store = DiskAt(case), StoreAt(case)
    world = _world(disk, store)
    outcome = "nothing shows"

    async def main() -> None:
        nonlocal outcome
        disk.on.add("armed")
        store.on.add("armed")
        world.troubled = True
        await world.start()
        for step in STEPS:
            await step(world)  # type: ignore[misc]
            await world.settle()
            world.check()
            if (disk.struck or store.struck) and case.ending != "goes on":
                if case.ending == "stop":
                    await world.stop()
                world.machine.kill()
                break
        run = world.machine.run
        assert run is not None
        if case.kind == "bit":
            await _flip(world, case)
        elif run.state in (State.FAILED, State.REFUSED):
            outcome = f"node {'ended' if run.state is State.FAILED else 'refused to start'}"
        elif not run.ended and not await world.examine():
            outcome = "partitions offline"
        await world.revive()
        if case.kind == "bit" and (world.unavailable or world.machine.run is None):
            outcome = "partitions offline"
        run = world.machine.run
        if run is not None and run.state is State.REFUSED:
            outcome = "start refused"
        world.check()
        await world.archive_is_sound()

    try:
        world.run(main())
    except (Violation, Stuck) as e:
        return Result(case, "BROKEN", str(e))
    if case.kind != "bit" and not disk.struck and not store.struck:
        outcome = "never reached"
    return Result(case, outcome, None)


async def _flip(world: SimWorld, case: Case) -> None:
    if case.ending == "while it is down":
        await world.stop()
        world.machine.kill()
    if case.name.startswith("/"):
        path = PurePath(case.name)
        try:
            file = world.machine.platter.file(path)
        except OSError:
            return
        _flip_in(file.data, case.position)
        _flip_in(file.durable, case.position)
        world.excuse_file(path)
    else:
        found = world.bucket.objects[case.name]
        data = bytearray(found.data)
        _flip_in(data, case.position)
        world.bucket.objects[case.name] = found._replace(data=bytes(data))
        world.excuse_object(case.name)


def _flip_in(data: bytearray, bit: int) -> None:
    if bit // 8 < len(data):
        data[bit // 8] ^= 1 << bit % 8


# All runs


def disk_cases(calls: Sequence[tuple[str, Path]]) -> Iterable[Case]:
    for number, (name, _) in enumerate(calls, 1):
        for errno in ERRNOS[name]:
            for forever in (False, True):
                for ending in ENDINGS:
                    yield Case("disk", number, name, str(errno), forever, ending)


def store_cases(calls: Sequence[tuple[str, str]]) -> Iterable[Case]:
    for number, (name, _) in enumerate(calls, 1):
        verdicts = [one for one in Verdict if one not in (Verdict.DONE, Verdict.FLIPPED_SHARED)]
        if name not in _READS:
            verdicts.remove(Verdict.CUT)
        if name in ("delete", "list", "head"):
            verdicts.remove(Verdict.FLIPPED)
        for verdict in verdicts:
            for forever in (False, True):
                for ending in ENDINGS:
                    yield Case("store", number, name, verdict.name, forever, ending)


def bit_cases(files: Iterable[tuple[str, int]], bits_each: int) -> Iterable[Case]:
    random = Random(1)
    for name, size in files:
        for _ in range(min(bits_each, 8 * size)):
            for ending in ("while it is down", "while it runs"):
                yield Case("bit", 0, name, "", False, ending, random.randrange(8 * size))


def main(arguments: list[str] | None = None) -> int:
    """0 when no run broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m simulator.sweep", description=__doc__)
    parser.add_argument("--kinds", default="disk,store,bit", help="of disk, store, bit")
    parser.add_argument("--every", type=int, default=1, help="one case of so many; 1: all")
    parser.add_argument("--bits", type=int, default=8, help="bits of each file and object")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=10, help="broken promises that are told")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    disk_calls, store_calls, files, objects = apart(dry_run)
    cases: list[Case] = []
    kinds = given.kinds.split(",")
    if "disk" in kinds:
        cases += disk_cases(disk_calls)
    if "store" in kinds:
        cases += store_cases(store_calls)
    if "bit" in kinds:
        cases += bit_cases([*files, *objects], given.bits)
    print(
        f"the workload: {len(disk_calls)} calls of the disk, {len(store_calls)} of the store, "
        f"{len(files)} files, {len(objects)} objects; {len(cases)} cases"
    )
    broken: list[Result] = []
    table: Counter[tuple[str, str, str]] = Counter()
    chosen = cases[:: given.every]
    with ThreadPoolExecutor(given.jobs) as pool:
        for result in pool.map(lambda case: apart(lambda: run_case(case)), chosen):
            case = result.case
            what = errorcode[int(case.what)] if case.kind == "disk" else case.what
            name = _kind_of_file(case.name) if case.kind == "bit" else case.name
            table[f"{case.kind} {name}", what, result.outcome] += 1
            if result.problem is not None:
                broken.append(result)
    _print_table(table)
    for result in broken[: given.show]:
        print(f"BROKEN: {result.case}\n        {result.problem}")
    seconds = time.monotonic() - began
    print(f"{len(chosen)} runs in {seconds:.0f} s, {len(broken)} broke a promise")
    return 1 if broken else 0


def _kind_of_file(name: str) -> str:
    path = PurePath(name)
    where = "metadata " if METADATA in name else ""
    return where + (path.suffix or path.name)


def _print_table(table: Counter[tuple[str, str, str]]) -> None:
    outcomes = sorted({outcome for _, _, outcome in table})
    rows = sorted({(name, what) for name, what, _ in table})
    width = max((len(f"{name} {what}") for name, what in rows), default=0)
    print(" " * width, *(f"{outcome:>20}" for outcome in outcomes))
    for name, what in rows:
        counts = (table[name, what, outcome] for outcome in outcomes)
        print(f"{f'{name} {what}':<{width}}", *(f"{count or '':>20}" for count in counts))


if __name__ == "__main__":
    sys.exit(main())
