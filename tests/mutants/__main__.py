"""Mutation runs: which small changes of the code does no test notice?

``python -m tests.mutants [ROOM or FILE]...`` takes the pure modules of each room (a file is taken whatever it
is), tests a sample of their mutants, prints those that survive, and a table.
``python -m tests.mutants --alone PATH:LINE:NTH [TESTS and options of pytest]`` runs tests with one in place.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.mutants.session import ROOT, Fate, Place, Session, alone, place_named, places

ROOMS = ("service/hot", "service/replication", "service/tiering", "service/metadata/raft")
TESTS = ("tests/unit", "tests/property")
IMPORT = re.compile(r"^\s*(?:from|import) ((?:service|tests)[\w.]*)", re.MULTILINE)


def is_pure(path: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].endswith("[P]")


def files_of(room: str) -> list[str]:
    """The modules that are changed: the pure ones of a room, or the file itself."""
    path = ROOT / room
    found = [path] if path.is_file() else [one for one in sorted(path.rglob("*.py")) if is_pure(one)]
    if not found:
        raise SystemExit(f"firn: {room} has no pure module")
    return [one.relative_to(ROOT).as_posix() for one in found]


def imported(path: Path) -> set[str]:
    """Modules of this tree that a test file imports, by itself or through other files of `tests`."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        names = set(re.findall(IMPORT, waiting.pop().read_text("utf-8"))) - found
        found |= names
        helpers = [
            (ROOT / name.replace(".", "/")).with_suffix(".py") for name in names if name.startswith("tests")
        ]
        waiting += [helper for helper in helpers if helper.is_file()]
    return found


def tests_of(rooms: Iterable[str]) -> list[str]:
    """Test files that import something of the rooms."""
    folders = [Path(room).parent if room.endswith(".py") else Path(room) for room in rooms]
    prefixes = tuple(".".join(folder.parts) for folder in folders)
    return [
        path.relative_to(ROOT).as_posix()
        for folder in TESTS
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if any(name.startswith(prefixes) for name in imported(path))
    ]


def between(killed: int, count: int) -> tuple[float, float]:
    """The share of all mutants that are killed, by a sample: 95 % (Wilson's interval).

    >>> [round(share, 3) for share in between(90, 100)]
    [0.826, 0.945]
    """
    z = 1.96
    share = killed / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - half, middle + half


def row(room: str, fates: Sequence[Fate], of_all: int) -> str:
    killed = sum(fate.is_killed for fate in fates)
    low, high = between(killed, len(fates))
    text = f"{room:28} {len(fates):5} of {of_all:5}   killed {killed:5}   {killed / len(fates):6.1%}"
    return text if len(fates) == of_all else f"{text}   (of all: {low:.0%} to {high:.0%})"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--alone"]:
        place = place_named(arguments[1])
        room = str(Path(place.path).parent)
        return alone(place, arguments[2:] or tests_of([room]))
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "rooms", nargs="*", default=ROOMS, help="folders, of which the pure modules are taken, or files"
    )
    parser.add_argument("--seed", type=int, default=1, help="which mutants are taken (1)")
    parser.add_argument("--budget", type=int, default=150, help="mutants of each room (150)")
    parser.add_argument(
        "--limit", type=float, default=30, help="seconds of tests for each mutant, the fastest first (30)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once (2)")
    parser.add_argument("--mutant", action="append", help="this one alone, as PATH:LINE:NTH")
    parser.add_argument("--tests", nargs="*", help="test files, instead of all that import the room")
    options = parser.parse_args(arguments)
    if options.mutant:
        sampled = {name: [place_named(name)] for name in options.mutant}
        rooms = [str(Path(one[0].path).parent) for one in sampled.values()]
    else:
        rooms = list(options.rooms)
        sampled = {room: [place for file in files_of(room) for place in places(file)] for room in rooms}
    of_all = {room: len(found) for room, found in sampled.items()}
    for room, found in sampled.items():
        if len(found) > options.budget:
            chosen = random.Random(f"{options.seed} {room}").sample(range(len(found)), options.budget)
            sampled[room] = [found[n] for n in sorted(chosen)]
    fates = run(
        [one for found in sampled.values() for one in found], options.tests or tests_of(rooms), options
    )
    print()
    for room, found in sampled.items():
        mine = set(map(str, found))
        print(row(room, [fate for fate in fates if str(fate.place) in mine], of_all[room]))
    return 0


def run(chosen: Sequence[Place], tests: Sequence[str], options: argparse.Namespace) -> list[Fate]:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", file=out)

    tell(f"{len(chosen)} mutants, seed {options.seed}; {len(tests)} test files")
    # Not on a disk: tests flush, and mutants are many.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="firn-mutants-", dir=memory))
    session = Session(chosen, options.jobs, options.limit, scratch, tell)
    os.environ["PYTEST_ADDOPTS"] = "-n 0 -o tmp_path_retention_policy=none"
    settings = [f"--basetemp={scratch / 'tests'}", "-m", "not soak and not thorough", "--capture=no", "-qq"]
    try:
        code = pytest.main([*tests, *settings], [session])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if code:
        raise SystemExit(f"firn: the tests could not be run: pytest ended with {code}")
    return session.fates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
