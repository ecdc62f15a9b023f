"""A pytest session that runs the tests of each mutant, in a fork of itself.

Tests are collected once. A first child runs all of them and tells which test reaches which lines, and how
long it takes. Each mutant has a child of its own, which gives the functions of the module their changed code
and runs the tests that reach its lines, the fastest first, up to the first that fails. What an import makes
of a module (constants, defaults, classes) cannot be replaced afterwards: such a mutant's child begins anew,
as ``python -m tests.mutants --alone`` (`alone`). No file of the tree is changed.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.abc
import importlib.machinery
import math
import os
import pickle
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutants.mutations import PROBE, Mutant, mutants, mutated, probed

ROOT = Path.cwd()
"""where the tree lies that is tested"""
NO_MUTANT = 70
"""exit code: the source is not what it was"""
MOST_MEMORY = 2 << 30
"""bytes that a mutant may take beyond what the session has"""


@dataclass(frozen=True)
class Place:
    """A mutant of a file of this tree."""

    path: str
    mutant: Mutant

    def __str__(self) -> str:
        return f"{self.path}:{self.mutant.line}:{self.mutant.nth}"

    def code(self) -> CodeType:
        """The module's, with the mutant in it."""
        file = ROOT / self.path
        return compile(mutated(file.read_text("utf-8"), self.mutant), str(file), "exec")


def places(path: str) -> list[Place]:
    return [Place(path, one) for one in mutants((ROOT / path).read_text("utf-8"))]


def place_named(name: str) -> Place:
    """The mutant that an output names, as `path:line:nth`."""
    path, _, _ = name.rsplit(":", 2)
    for one in places(path):
        if str(one) == name:
            return one
    print(f"firn: no mutant {name}; {path} has {len(places(path))}", file=sys.stderr)
    raise SystemExit(NO_MUTANT)


@dataclass
class Fate:
    place: Place
    is_killed: bool
    why: str


@dataclass
class Reach:
    """What the unchanged code's run told of the tests."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """by file and line: the tests that reach it"""
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU time, by test that passed"""

    def tests_of(self, place: Place) -> list[str]:
        """Those that reach the statement, or all, as anybody may use what an import makes; fastest first."""
        found = set(self.seconds)
        if place.mutant.in_function:
            found &= self.lines.get(place.path, {}).get(place.mutant.statement, set())
        return sorted(found, key=lambda test: (self.seconds[test], test))


def repeat_examples() -> None:
    """Have Hypothesis take the same examples in each run, keep none and make none smaller."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")


class Session:
    """The plugin; `fates` has what became of `chosen` when pytest is done."""

    def __init__(
        self, chosen: Sequence[Place], jobs: int, limit_s: float, scratch: Path, tell: Callable[[str], None]
    ) -> None:
        self.chosen = chosen
        self.fates: list[Fate] = []
        self._scratch = scratch
        self._jobs = jobs
        self._limit_s = limit_s
        self._tell = tell
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)
        self._failed = False

    def pytest_sessionstart(self) -> None:
        repeat_examples()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                self._functions[one.__code__.co_filename].append(one)
        gc.collect()
        gc.freeze()
        began = time.monotonic()
        reach = self._reach()
        self._tell(f"{len(reach.seconds)} of {len(self._items)} tests, {time.monotonic() - began:.0f} s")
        self._run_all(reach)
        return True

    # -- the unchanged code

    def _reach(self) -> Reach:
        """Run everything once, in a child."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            with os.fdopen(write, "wb") as out:
                pickle.dump(self._observe(), out)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as found:
            reach: Reach = pickle.load(found)
        os.waitpid(pid, 0)
        return reach

    def _observe(self) -> Reach:
        _quiet()
        reach = Reach()
        reached: set[tuple[str, int]] = set()
        setattr(builtins, PROBE, reached.add)
        for path in {one.path for one in self.chosen}:
            file = ROOT / path
            self._replace(compile(probed(file.read_text("utf-8"), path), str(file), "exec"))
        for name in self._items:
            reached.clear()
            began = time.process_time()
            if not self._run([name]):
                self._tell(f"left out, as it fails by itself: {name}")
                continue
            reach.seconds[name] = time.process_time() - began
            for path, line in tuple(reached):
                reach.lines.setdefault(path, {}).setdefault(line, set()).add(name)
        return reach

    def _run(self, names: Sequence[str]) -> bool:
        """Run tests up to the first that fails; whether none does."""
        self._failed = False
        items = [self._items[name] for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return False
        return True

    # -- mutants

    def _run_all(self, reach: Reach) -> None:
        waiting = list(reversed(self.chosen))
        running: dict[int, tuple[Place, float, int]] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                place = waiting.pop()
                tests = self._within(reach, reach.tests_of(place))
                if not tests:
                    self._note(place, False, "no test reaches it")
                    continue
                expected_s = sum(reach.seconds[test] for test in tests)
                pid = self._start(place, tests, expected_s)
                running[pid] = (place, time.monotonic() + 60 + 10 * expected_s, len(tests))
            for pid, (place, deadline, count) in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and time.monotonic() < deadline:
                    continue
                _end(pid)
                if not done:
                    os.waitpid(pid, 0)
                del running[pid]
                code = os.waitstatus_to_exitcode(status) if done else None
                if code in (NO_MUTANT, pytest.ExitCode.NO_TESTS_COLLECTED):
                    raise RuntimeError(f"{place} could not be tested: exit code {code}")
                why = f"{count} tests pass" if code == 0 else "a test fails, or never ends"
                self._note(place, code != 0, why)
            time.sleep(0.005)

    def _within(self, reach: Reach, tests: list[str]) -> list[str]:
        """As many of `tests` as fit into the limit; one at least."""
        total_s = 0.0
        for n, test in enumerate(tests):
            total_s += reach.seconds[test]
            if total_s > self._limit_s:
                return tests[: n or 1]
        return tests

    def _note(self, place: Place, is_killed: bool, why: str) -> None:
        self.fates.append(Fate(place, is_killed, why))
        if not is_killed:
            self._tell(f"SURVIVES  {place}  {place.mutant.what}  ({why})")

    def _start(self, place: Place, tests: Sequence[str], expected_s: float) -> int:
        if pid := os.fork():
            return pid
        os.setsid()
        with open("/proc/self/statm") as found:
            pages = int(found.read().split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        _quiet()
        code = place.code()
        if not place.mutant.in_function or not self._replace(code):
            _bound_cpu(2 * expected_s + 15)
            folder = f"--basetemp={self._scratch / str(os.getpid())}"
            command = [sys.executable, "-m", "tests.mutants", "--alone", str(place), folder, *tests]
            os.execv(sys.executable, command)
        _bound_cpu(2 * expected_s + 3)
        os._exit(not self._run(tests))

    def _replace(self, code: CodeType) -> bool:
        """Give the functions of a module the code of its mutant; whether that is possible."""
        made = {(one.co_qualname, one.co_firstlineno): one for one in _within_code(code)}
        try:
            for function in self._functions[code.co_filename]:
                old = function.__code__
                function.__code__ = made.get((old.co_qualname, old.co_firstlineno), old)
        except ValueError:  # it closes over other variables
            return False
        return True


def _within_code(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _within_code(one)


def _bound_cpu(seconds: float) -> None:
    """A loop that a mutant never leaves is ended."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))


def _quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _end(pid: int) -> None:
    """Kill what a mutant's child started, and the child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, which has a mutant's code."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._name = ".".join(Path(place.path).with_suffix("").parts)

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(ROOT / self._place.path))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(ROOT / self._place.path)
        exec(self._place.code(), module.__dict__)


class _Repeating:
    def pytest_sessionstart(self) -> None:
        repeat_examples()


def alone(place: Place, arguments: Sequence[str]) -> int:
    """Run pytest with a mutant in place from the imports on; the exit code."""
    sys.meta_path.insert(0, _Mutated(place))
    return pytest.main(["-x", "-n", "0", *arguments], [_Repeating()])
