"""Random faults: a history turns kinds on and off; chance decides which calls fail.

A `KeyFault` makes every call fail, but only for a set of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from errno import EACCES, EIO, EMFILE, ENOSPC
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from simulator.process_disk import HALF
from simulator.store import Verdict
from simulator.trace import Trace

METADATA: Final = "__cluster_metadata-0"
_READS: Final = ("pread", "size", "stat", "list")
_WRITES: Final = ("pwrite", "truncate")
_NAMES: Final = ("open", "rename", "unlink", "mkdir", "rmdir", "fsync_dir")

FULL: Final = "disk full"
DISK_KINDS: Final[Mapping[str, tuple[tuple[str, ...], int, float]]] = {
    "read errors": (_READS, EIO, 0.05),
    "write errors": (_WRITES, EIO, 0.08),
    "fsync errors": (("fsync",), EIO, 0.3),
    "errors of names": (_NAMES, EIO, 0.06),
    "no permission": (("unlink", "stat"), EACCES, 0.1),
    FULL: (("pwrite", "mkdir", "rename"), ENOSPC, 0.9),
    "no descriptors": (("open", "list", "lock"), EMFILE, 0.7),
}
"""Calls, errno, and how often each call fails while it is on."""
SLOW_FSYNC: Final = "slow fsync"
SLOW_METADATA: Final = "slow fsync of the metadata"
"""Gives other work time between the proposal of a change and its commit."""
SEGMENT_FSYNC: Final = "fsync errors of segments"
"""The node lives on: its metadata is flushed."""

LITTLE_ROOM: Final = "little room"
"""Free space of the disk goes up and down, over all its watermarks."""
_LEFT: Final = (0.0, 0.02, 0.04, 0.06, 0.1, 0.14, 0.18, 0.3)

NO_ROOM: Final = "no room"
"""Foreign files leave less than ``firn.disk.reserve.bytes`` free; writes succeed all the same."""
_NO_ROOM_SHARE: Final = 1 / 32_768
"""8 MiB of 256 GiB"""

UNLINK: Final = "files stay"
"""Unlinks of segments fail: later files must not be deleted before earlier ones that stay."""

SHARED: Final = "flipped bits of shared objects"
STORE_KINDS: Final[Mapping[str, Mapping[Verdict, float]]] = {
    "store errors": {Verdict.FAILS: 0.2},
    "lost answers": {Verdict.LOST: 0.2},
    "late writes": {Verdict.LATE: 0.15},
    "store denies": {Verdict.REFUSED: 1.0},
    "store throttles": {Verdict.THROTTLED: 0.5},
    "store away": {Verdict.FAILS: 1.0},
    "cut bodies": {Verdict.CUT: 0.3},
    "flipped bits on the way": {Verdict.FLIPPED: 0.2},
    SHARED: {Verdict.FLIPPED_SHARED: 0.2},
}
SLOW_STORE: Final = "slow store"

_READ_CALLS: Final = ("get", "get_range", "get_suffix")
READS: Final = (*_READ_CALLS, "head")
WRITES: Final = ("put", "put_stream", "put_if_absent", "put_if_match")
DELETES: Final = ("delete",)


class KeyFault(NamedTuple):
    """A fault of a set of keys, as long as it is on: each of these `calls` for a key below one of `prefixes`
    that ends so is answered with `verdict`."""

    name: str
    verdict: Verdict
    calls: tuple[str, ...]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...] = ("",)

    def __str__(self) -> str:
        return self.name

    def strikes(self, call: str, key: str) -> bool:
        return call in self.calls and key.startswith(self.prefixes) and key.endswith(self.suffixes)


def _is_metadata(path: Path) -> bool:
    return path.parent.name == METADATA


class DrawnFaults:
    """`simulator.process_disk.DiskFaults`: the kinds that are on, each with its odds."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self._random = random
        self._trace = trace
        self.on: set[str] = set()
        self.struck = 0

    def fail(self, call: str, path: Path) -> int | None:
        if not self.on:
            return None
        is_segment = call == "fsync" and path.suffix == ".log" and not _is_metadata(path)
        if SEGMENT_FSYNC in self.on and is_segment and self._random.random() < 0.5:
            return self._strikes(call, path, SEGMENT_FSYNC, EIO)
        if UNLINK in self.on and call == "unlink" and self._random.random() < 0.3:
            return self._strikes(call, path, UNLINK, EACCES)
        for kind, (calls, errno, odds) in DISK_KINDS.items():
            if kind in self.on and call in calls and self._random.random() < odds:
                return self._strikes(call, path, kind, errno)
        return None

    def _strikes(self, call: str, path: Path, kind: str, errno: int) -> int:
        self.struck += 1
        self._trace.tell("disk", f"{call} {path}: {kind}")
        return errno

    def slow_s(self, call: str, path: Path) -> float:
        if SLOW_METADATA in self.on and _is_metadata(path):
            return 5 + self._random.random() * 5
        return self._random.random() * 5 if SLOW_FSYNC in self.on else 0.0

    def part(self, size: int) -> int:
        return self._random.randint(0, size) if self._random.random() < 0.5 else 0

    def drops_dirty(self) -> bool:
        return self._random.random() < 0.7

    def left(self) -> float:
        if FULL in self.on:
            return 0.0
        if NO_ROOM in self.on:
            return _NO_ROOM_SHARE
        return self._random.choice(_LEFT) if LITTLE_ROOM in self.on else HALF


class DrawnStoreFaults:
    """`simulator.store.StoreFaults`, likewise."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self._random = random
        self._trace = trace
        self.on: set[str | KeyFault] = set()
        self.lasting: str | None = None
        """the kind that stays on although the others are switched off"""
        self.struck = 0
        self.has_flipped = False
        """whether anything that was written was ever damaged on its way"""

    def judge(self, call: str, key: str) -> Verdict:
        if not self.on and self.lasting is None:
            return Verdict.DONE
        struck = [one for one in self.on if isinstance(one, KeyFault) and one.strikes(call, key)]
        if struck:
            self.struck += 1
            return min(struck, key=str).verdict
        for kind, odds_of in STORE_KINDS.items():
            if kind not in self.on and kind != self.lasting:
                continue
            for verdict, odds in odds_of.items():
                if verdict is Verdict.CUT and call not in _READ_CALLS:
                    continue
                if verdict is Verdict.FLIPPED and call not in _READ_CALLS and "/" not in key:
                    continue  # cluster.json and topics.json: FLIPPED_SHARED
                if verdict is Verdict.FLIPPED_SHARED and (call in _READ_CALLS or "/" in key):
                    continue
                if self._random.random() < odds:
                    self.struck += 1
                    self.has_flipped |= verdict in (Verdict.FLIPPED, Verdict.FLIPPED_SHARED)
                    self._trace.note("store", f"{call} {key}: {verdict.value}")
                    return verdict
        return Verdict.DONE

    def latency_s(self, call: str) -> float:
        return self._random.random() * 8 if SLOW_STORE in self.on else 0.0
