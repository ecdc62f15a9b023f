"""Every call, every error; every bit: `python -m simulator.sweep`, one fixed workload again and again.

The k-th call of the disk fails, for every k and every errno that the call can return, once or from then on;
likewise the k-th call of the store, in each way in which a store fails. Then the node goes on, is stopped
or is killed, and is started again without the fault, when everything must be there. And one bit of one
file or object flips, while the node is down or while it runs: it must be noticed, or make no difference.

What comes before the fault is played once for all of them: the process is forked where the faults begin.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import errorcode
from pathlib import Path, PurePath
from random import Random
from typing import Final, NamedTuple, Protocol

import service.inspect.fsck  # loaded once, before the first fork
from simulator.apart import apart
from simulator.faults import METADATA
from simulator.loop import Stuck
from simulator.machine import NodeLogs, State
from simulator.model import Violation
from simulator.process_disk import ERRNOS, HALF
from simulator.store import Verdict
from simulator.workload import SETTINGS_OF_SWEEP, STEPS
from simulator.world import SimWorld

_ = service.inspect.fsck

ENDINGS: Final = ("goes on", "stop", "kill")
_READS: Final = ("get", "get_range", "get_suffix")
_CASES_AT_A_TIME: Final = 1000
"""in one process; those before the first of them are passed over once"""
_MOST_SECONDS: Final = 60
"""that one case may take, of the real clock"""

QUIET: Final = "nothing shows"
TOLD: Final = "told in the log"
OFFLINE: Final = "partitions offline"
ENDED: Final = "node ended"
REFUSED: Final = "start refused"
UNREACHED: Final = "never reached"
BROKEN: Final = "BROKEN"
OUTCOMES: Final = (QUIET, TOLD, OFFLINE, ENDED, REFUSED, UNREACHED, BROKEN)


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
    """Result of a run: `outcome` in a word or two, `problem` if a promise was broken."""

    case: Case
    outcome: str
    problem: str | None


class ResultOf(Protocol):
    """Returns the result of a case from what went wrong in its run, and whether the node logged anything."""

    def __call__(self, case: Case, problem: str | None, *, is_told: bool) -> Result: ...


class Forks:
    """The cases, by the call at which each begins. A process in which a case is played has no other."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._waiting: dict[tuple[str, int], list[Case]] = {}
        for case in cases:
            self._waiting.setdefault((case.kind, case.call), []).append(case)
        self.case: Case | None = None
        """what is played in this process, once it has begun"""
        self.results: list[Result] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pipe = -1

    def at(self, kind: str, call: int) -> Case | None:
        """Fork for each case that begins here: its case in a child, None in the parent after all of them."""
        if self.case is not None:
            return None
        for case in self._waiting.pop((kind, call), ()):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                signal.alarm(_MOST_SECONDS)
                os.close(reading)
                self._pipe, self.case = writing, case
                asyncio._set_running_loop(self.loop)  # asyncio takes a fork for a process without one
                return case
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                data = pipe.read()
            os.waitpid(child, 0)
            died = Result(case, BROKEN, f"the process died, or took more than {_MOST_SECONDS} s")
            self.results.append(pickle.loads(data) if data else died)
        return None

    def play(self, run: Callable[[], None], result: ResultOf, name: str) -> list[Result]:
        """Run it to its end, and return the results of all cases; a child sends its own, and ends here.

        Raises `RuntimeError` where it fails without any fault; `name` says what.
        """
        lines: list[str] = []
        handler = next(one for one in logging.getLogger("service").handlers if isinstance(one, NodeLogs))
        handler.on_line = lambda _, text: lines.append(text) if self.case else None
        problem: str | None = None
        try:
            run()
        except (Violation, Stuck) as e:
            problem = str(e)
        except Exception as e:
            if self.case is None:
                raise
            problem = f"{type(e).__name__}: {e}"
        if self.case is not None:
            self._end(result(self.case, problem, is_told=bool(lines)))
        if problem is not None:
            raise RuntimeError(f"the {name} fails without any fault: {problem}")
        unreached = (Result(case, UNREACHED, None) for cases in self._waiting.values() for case in cases)
        return [*self.results, *unreached]

    def _end(self, result: Result) -> None:
        """Send the result to the parent and end this child."""
        with os.fdopen(self._pipe, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)


class DiskAt:
    """`DiskFaults`: one call fails, and those of its name after it where it is for ever."""

    def __init__(self, forks: Forks, seen: list[tuple[str, Path]] | None = None) -> None:
        self._forks = forks
        self._seen = seen
        self._calls = 0
        self.struck = False
        self.on: set[str] = {"armed"}

    def fail(self, call: str, path: Path) -> int | None:
        self._calls += 1
        if self._seen is not None:
            self._seen.append((call, path))
        case = self._forks.at("disk", self._calls)
        if case is None and self.struck and self.on:
            case = self._forks.case
            if case is None or not case.forever or case.name != call:
                return None
        if case is None:
            return None
        self.struck = True
        return int(case.what)

    def slow_s(self, call: str, path: Path) -> float:
        return 0.0

    def part(self, size: int) -> int:
        return size // 2

    def drops_dirty(self) -> bool:
        return True

    def left(self) -> float:
        return HALF


class StoreAt:
    """`simulator.store.StoreFaults`, likewise."""

    def __init__(self, forks: Forks, seen: list[tuple[str, str]] | None = None) -> None:
        self._forks = forks
        self._seen = seen
        self._calls = 0
        self.struck = False
        self.on: set[str] = {"armed"}

    @property
    def has_flipped(self) -> bool:
        """Return whether a bit was flipped on its way to the bucket, which an operator repairs afterwards."""
        case = self._forks.case
        return self.struck and case is not None and case.what == Verdict.FLIPPED.name

    def judge(self, call: str, key: str) -> Verdict:
        self._calls += 1
        if self._seen is not None:
            self._seen.append((call, key))
        case = self._forks.at("store", self._calls)
        if case is None and self.struck and self.on:
            case = self._forks.case
            if case is None or not case.forever or case.name != call:
                return Verdict.DONE
        if case is None:
            return Verdict.DONE
        self.struck = True
        return Verdict[case.what]

    def latency_s(self, call: str) -> float:
        return 0.0


# One run


def _world(disk: DiskAt, store: StoreAt) -> SimWorld:
    world = SimWorld(1, log_dirs=2)
    world.faults = world.machine.faults = disk  # type: ignore[assignment]
    world.store_faults = world.machine.store_faults = store  # type: ignore[assignment]
    world.settings = {**SETTINGS_OF_SWEEP, "log.dirs": world.settings["log.dirs"]}
    return world


class Workload(NamedTuple):
    """Calls of the workload, and the files and objects that it leaves, with their sizes."""

    disk_calls: list[tuple[str, Path]]
    store_calls: list[tuple[str, str]]
    files: list[tuple[str, int]]
    objects: list[tuple[str, int]]


def dry_run() -> Workload:
    """Play it without a fault."""
    disk_calls: list[tuple[str, Path]] = []
    store_calls: list[tuple[str, str]] = []
    forks = Forks(())
    world = _world(DiskAt(forks, disk_calls), StoreAt(forks, store_calls))

    async def main() -> None:
        await world.start()
        for step in STEPS:
            await step(world)
        await world.revive()

    world.run(main())
    files = [
        (path, len(file.data))
        for log_dir in world.machine.log_dirs
        for path, file in world.machine.platter.files(PurePath(log_dir))
    ]
    objects = [(key, len(found.data)) for key, found in sorted(world.bucket.objects.items())]
    return Workload(disk_calls, store_calls, files, objects)


class Player:
    """Plays the workload; where cases begin, a child plays each of them to its end."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.forks = Forks(cases)
        self._disk = DiskAt(self.forks)
        self._store = StoreAt(self.forks)
        self._world = _world(self._disk, self._store)
        self.forks.loop = self._world.loop
        self._world.troubled = True
        self._outcome = QUIET

    def play(self) -> list[Result]:
        """Play the workload in this process, which `apart` ends afterwards."""
        return self.forks.play(lambda: self._world.run(self._main()), self._result, "workload")

    def _result(self, case: Case, problem: str | None, *, is_told: bool) -> Result:
        outcome = TOLD if self._outcome == QUIET and is_told else self._outcome
        return Result(case, outcome if problem is None else BROKEN, problem)

    async def _main(self) -> None:
        world, forks = self._world, self.forks
        await world.start()
        for step in STEPS:
            await step(world)
            await world.settle()
            world.check()
            if forks.case is not None and forks.case.ending != "goes on":
                if forks.case.ending == "stop":
                    await world.stop()
                world.machine.kill()
                break
        if forks.case is None and (case := forks.at("bit", 0)) is not None:
            await self._flip(case)
        run = world.machine.run
        assert run is not None
        if run.state in (State.FAILED, State.REFUSED):
            self._outcome = ENDED if run.state is State.FAILED else REFUSED
        elif not run.ended and forks.case is not None and not await world.examine():
            self._outcome = OFFLINE
        await world.revive()
        if forks.case is not None and forks.case.kind == "bit" and world.unavailable:
            self._outcome = OFFLINE
        run = world.machine.run
        if run is not None and run.state is State.REFUSED:
            self._outcome = REFUSED
        world.check()
        await world.archive_is_sound()

    async def _flip(self, case: Case) -> None:
        world = self._world
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
        elif case.name in world.bucket.objects:
            found = world.bucket.objects[case.name]
            data = bytearray(found.data)
            _flip_in(data, case.position)
            world.bucket.objects[case.name] = found._replace(data=bytes(data))
            world.excuse_object(case.name)


def _flip_in(data: bytearray, bit: int) -> None:
    if bit // 8 < len(data):
        data[bit // 8] ^= 1 << bit % 8


def run_cases(cases: Sequence[Case]) -> list[Result]:
    """Play these, in a process of their own."""
    return apart(lambda: Player(cases).play())


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
    """Drawn bits; all of them where there are not more."""
    random = Random(1)
    for name, size in files:
        bits = 8 * size
        for position in random.sample(range(bits), min(bits_each, bits)):
            for ending in ("while it is down", "while it runs"):
                yield Case("bit", 0, name, "", False, ending, position)


def _all_cases(workload: Workload, kinds: Sequence[str], bits: int) -> list[Case]:
    makers: Mapping[str, Callable[[], Iterable[Case]]] = {
        "disk": lambda: disk_cases(workload.disk_calls),
        "store": lambda: store_cases(workload.store_calls),
        "bit": lambda: bit_cases([*workload.files, *workload.objects], bits),
    }
    return [case for kind in kinds for case in makers[kind]()]


def main(arguments: list[str] | None = None) -> int:
    """0 when no run broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m simulator.sweep", description=__doc__)
    parser.add_argument("--kinds", default="disk,store,bit", help="of disk, store, bit")
    parser.add_argument("--every", type=int, default=1, help="one case of so many; 1: all")
    parser.add_argument("--first", type=int, default=0, help="and the first of them, from 0 on")
    parser.add_argument("--bits", type=int, default=16, help="bits of each file and object")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=10, help="broken promises that are told")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    workload = apart(dry_run)
    cases = _all_cases(workload, given.kinds.split(","), given.bits)
    print(
        f"the workload: {len(workload.disk_calls)} calls of the disk, {len(workload.store_calls)} of the "
        f"store, {len(workload.files)} files, {len(workload.objects)} objects; {len(cases)} cases",
        flush=True,
    )
    chosen = cases[given.first :: given.every]
    count = max(given.jobs, len(chosen) // _CASES_AT_A_TIME)
    pieces = [chosen[len(chosen) * at // count : len(chosen) * (at + 1) // count] for at in range(count)]
    results: list[Result] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for piece in pool.map(run_cases, pieces):
            results += piece
            bad = sum(result.problem is not None for result in results)
            seconds = time.monotonic() - began
            print(f"{len(results)} of {len(chosen)}: {bad} broke a promise, {seconds:.0f} s", flush=True)
    broken = sorted(result for result in results if result.problem is not None)
    _print_table(results)
    for result in broken[: given.show]:
        print(f"BROKEN: {result.case}\n        {result.problem}")
    seconds = time.monotonic() - began
    counts = Counter(result.outcome for result in results)
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]))
    rate = len(results) / seconds
    print(f"{len(results)} runs in {seconds:.0f} s ({rate:.1f}/s), {len(broken)} broke a promise")
    return 1 if broken else 0


def _kind_of_file(name: str) -> str:
    path = PurePath(name)
    where = "metadata " if METADATA in name else ""
    return where + (path.suffix or path.name)


def _print_table(results: Iterable[Result]) -> None:
    table: Counter[tuple[str, str]] = Counter()
    for case, outcome, _ in results:
        what = errorcode[int(case.what)] if case.kind == "disk" else case.what
        name = _kind_of_file(case.name) if case.kind == "bit" else case.name
        table[f"{case.kind} {name} {what}", outcome] += 1
    outcomes = [one for one in OUTCOMES if any(outcome == one for _, outcome in table)]
    rows = sorted({row for row, _ in table})
    width = max(map(len, rows), default=0)
    print(" " * width, *(f"{outcome:>18}" for outcome in outcomes))
    for row in rows:
        print(f"{row:<{width}}", *(f"{table[row, outcome] or '':>18}" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
