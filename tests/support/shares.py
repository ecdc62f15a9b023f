"""Files of tests shared out: under `--dist each`, where each of xdist's workers runs all that it has
collected, it collects its share alone.

Otherwise each worker imports every file and makes every test, which for thousands of tests of milliseconds
takes longer than to run them. Shares are of about the same size in bytes, the best that is known of them
beforehand. Files that the command line names one by one stay together: those right below tests/ all parse
this repository's sources, which takes longer than what they then look for, and count as `OF_THE_REST`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import EachScheduling

OF_THE_REST: Final = 1 / 10


@cache
def share(places: tuple[str, ...], count: int, number: int) -> frozenset[Path]:
    """Return the files in these places that worker `number` of `count` has."""
    paths = [Path(place).resolve() for place in places]
    named = {path for path in paths if path.is_file()}
    sizes = {path: path.stat().st_size for place in paths for path in place.rglob("test_*.py")}
    taken, shares = [0.0] * count, [set[Path]() for _ in range(count)]
    taken[0], shares[0] = OF_THE_REST * sum(sizes.values()) if named else 0.0, named
    for path in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = taken.index(min(taken))
        taken[least] += sizes[path]
        shares[least].add(path)
    return frozenset(shares[number])


class _Elsewhere(pytest.Module):
    """A file that another worker has; it is not imported."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()


class _Shares(EachScheduling):
    """Counts the tests of all shares, so that progress is that of all."""

    def schedule(self) -> None:
        super().schedule()
        session = self.config.pluginmanager.get_plugin("session")
        session.testscollected = sum(map(len, self.node2collection.values()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> EachScheduling | None:
    return _Shares(config) if config.getoption("dist") == "each" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["has_share"] = node.config.option.dist == "each"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    given = getattr(parent.config, "workerinput", {"has_share": False})
    if not given["has_share"]:
        return None
    number = int(given["workerid"].removeprefix("gw"))
    mine = share(tuple(parent.config.args), given["workercount"], number)
    return None if module_path.resolve() in mine else _Elsewhere.from_parent(parent, path=module_path)
