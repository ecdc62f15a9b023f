"""The time that tests take: processor seconds and seconds of each file, test function and fixture.

``pytest -p tests.support.costs`` notes them, in each of xdist's workers, below `COSTS` (build/costs);
``python -m tests.support.costs [FOLDER]`` adds them up. Processor time is that of the process with its
threads and of the children that it has waited for, so that it says the same on a busy machine; a fixture of a
session or module counts where it is set up first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

FOLDER = Path("build/costs")


def _processor_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Costs:
    """Writes a line for everything that took time."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._at_start = _processor_s()

    @contextmanager
    def _noted(self, kind: str, name: str) -> Iterator[None]:
        processor_s, wall_s = _processor_s(), time.monotonic()
        try:
            yield
        finally:
            row = (kind, name, _processor_s() - processor_s, time.monotonic() - wall_s)
            self._out.write(json.dumps(row) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        if not isinstance(collector, pytest.File):
            return (yield)
        with self._noted("collection", collector.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        with self._noted("whole collection", ""):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._noted("test", item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._noted("call", item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        with self._noted("fixture", f"{fixturedef.argname} [{fixturedef.scope}]"):
            return (yield)

    def pytest_unconfigure(self) -> None:
        self._out.write(json.dumps(("process", "", _processor_s() - self._at_start, time.monotonic())) + "\n")
        self._out.close()


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ.get("COSTS", FOLDER))
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Costs((folder / f"{os.getpid()}.jsonl").open("w")), "costs")


def _table(title: str, sums: dict[str, list[float]], most: int) -> None:
    print(f"\n{title}: processor s, s, times")
    for name, (processor_s, wall_s, times) in sorted(sums.items(), key=lambda one: -max(one[1][:2]))[:most]:
        print(f"{processor_s:9.2f} {wall_s:9.2f} {times:7.0f}  {name}")


def main(folder: Path, most: int = 40) -> None:
    """Print the tables of everything noted below `folder`."""
    sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            kind, name, processor_s, wall_s = json.loads(line)
            places = [("kinds", kind), (kind, name)]
            if kind in ("test", "collection"):
                places.append((f"{kind}s of folders", str(Path(name.partition("::")[0]).parent)))
            if kind == "test":
                places += [("files", name.partition("::")[0]), ("functions", name.partition("[")[0])]
            for table, row in places:
                for n, value in enumerate((processor_s, wall_s, 1)):
                    sums[table][row][n] += value
    for table in (
        "kinds",
        "tests of folders",
        "collections of folders",
        "files",
        "functions",
        "fixture",
        "collection",
        "test",
    ):
        _table(table, sums[table], most)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
