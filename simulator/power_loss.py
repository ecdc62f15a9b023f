"""Content of a disk: the visible state, and the durable one that a loss of power leaves.

A file is durable as of its last fsync, a directory's names as of their last `fsync_dir`. Later changes may be
lost, torn at any byte or kept, by draw: all of them from some moment on, or each file's and directory's by
itself; changes of names are atomic. A failed fsync may drop the data that it should have written: reads see
it until the power fails, and no later fsync writes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum
from errno import EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY
from pathlib import Path, PurePath
from random import Random
from typing import Final

_SEPARATOR: Final = "/"


_numbers = itertools.count(1)
"""of all changes on all disks, in their order"""


class File:
    """Bytes as they are read, bytes as they are on the medium, and what is between."""

    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, int, bytes | None]] = []
        """number, position and bytes of writes; None cuts or fills up to the position"""
        self.modified_ms = 0

    def write(self, position: int, data: bytes) -> None:
        _apply(self.data, position, data)
        self.pending.append((next(_numbers), position, data))

    def truncate(self, size: int) -> None:
        _apply(self.data, size, None)
        self.pending.append((next(_numbers), size, None))

    def fsync(self) -> None:
        for _, position, data in self.pending:
            _apply(self.durable, position, data)
        self.pending.clear()

    def drop_dirty(self) -> None:
        """Drop the dirty data without writing it, as a failed fsync may."""
        self.pending.clear()

    def forget_some(self, random: Random) -> None:
        """Writes reach the medium in any order, if they do; its size comes with the first that did."""
        self.pending = [one for one in self.pending if one[2] is None or random.random() < 0.7]

    def lose_power(self, random: Random, until: int) -> None:
        """Keep what was written before the change of number `until`, and of that one any part."""
        after = bytearray(self.durable)
        for number, position, data in self.pending:
            if number < until:
                _apply(after, position, data)
            elif number == until and data and random.random() < 0.7:
                _apply(after, position, data[: _torn_at(len(data), random)])
        self.data = after
        self.durable = bytearray(after)
        self.pending.clear()


def _torn_at(size: int, random: Random) -> int:
    """Anywhere; often within the last bytes, where a number that is cut short is still one."""
    return max(0, size - random.randint(1, 4)) if random.random() < 0.3 else random.randint(0, size)


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del target[position:]
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    if data is not None:
        target[position : position + len(data)] = data


class Directory:
    """Names, as they are seen and as they are durable."""

    __slots__ = ("durable", "modified_ms", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[tuple[int, tuple[tuple[str, Node | None], ...]]] = []
        """numbers and changes, each of them whole: a rename takes a name away and gives another in one"""
        self.modified_ms = 0

    def change(self, *names: tuple[str, Node | None]) -> None:
        _rename(self.names, names)
        self.pending.append((next(_numbers), names))

    def fsync(self) -> None:
        for _, names in self.pending:
            _rename(self.durable, names)
        self.pending.clear()

    def lose_power(self, until: int) -> None:
        """Keep the changes before the one of number `until`."""
        for number, names in self.pending:
            if number < until:
                _rename(self.durable, names)
        self.pending.clear()
        self.names = dict(self.durable)


def _rename(target: dict[str, Node], names: tuple[tuple[str, Node | None], ...]) -> None:
    for name, node in names:
        if node is None:
            target.pop(name, None)
        else:
            target[name] = node


Node = File | Directory


class Loss(Enum):
    """Fate of data that is not durable when the power fails."""

    ALL = "all of it is lost"
    LATEST = "what came last is lost, and torn where it begins"
    ANY = "some of each file is lost, and torn where it begins"
    HOLES = "names stay, and of what each file was given, some is missing in between"
    SHORT = "names stay, and what each file was given last is torn"
    NONE = "none of it is lost"


class Platter:
    """One disk. Raises `OSError` with an errno, as the system does; knows of no faults."""

    def __init__(self) -> None:
        self.root = Directory()
        self.locks: dict[Path, object] = {}

    # Paths

    def find(self, path: PurePath) -> Node:
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise OSError(ENOTDIR, str(path))
            found = node.names.get(name)
            if found is None:
                raise OSError(ENOENT, str(path))
            node = found
        return node

    def directory(self, path: PurePath) -> Directory:
        node = self.find(path)
        if not isinstance(node, Directory):
            raise OSError(ENOTDIR, str(path))
        return node

    def file(self, path: PurePath) -> File:
        node = self.find(path)
        if not isinstance(node, File):
            raise OSError(EISDIR, str(path))
        return node

    # Names

    def create(self, path: PurePath) -> File:
        """Return the file at `path`; create it if there is none."""
        parent = self.directory(path.parent)
        node = parent.names.get(path.name)
        if isinstance(node, Directory):
            raise OSError(EISDIR, str(path))
        if node is None:
            node = File()
            parent.change((path.name, node))
        return node

    def mkdir(self, path: PurePath) -> None:
        parent = self.directory(path.parent)
        if path.name in parent.names:
            raise OSError(EEXIST, str(path))
        parent.change((path.name, Directory()))

    def make_root(self, path: PurePath) -> None:
        """Create a durable directory with its parents: a mount point."""
        above = self.root
        for name in _parts(path):
            node = above.names.setdefault(name, Directory())
            assert isinstance(node, Directory)
            above.durable[name] = node
            above = node

    def rename(self, source: PurePath, target: PurePath) -> None:
        node = self.find(source)
        old, new = self.directory(source.parent), self.directory(target.parent)
        there = new.names.get(target.name)
        if isinstance(there, Directory) and there is not node:
            if isinstance(node, File):
                raise OSError(EISDIR, str(target))
            if there.names:
                raise OSError(ENOTEMPTY, str(target))
        if isinstance(there, File) and isinstance(node, Directory):
            raise OSError(ENOTDIR, str(target))
        if there is node:
            return
        if old is new:
            old.change((source.name, None), (target.name, node))
        else:
            new.change((target.name, node))
            old.change((source.name, None))

    def unlink(self, path: PurePath) -> None:
        self.file(path)
        self.directory(path.parent).change((path.name, None))

    def rmdir(self, path: PurePath) -> None:
        if self.directory(path).names:
            raise OSError(ENOTEMPTY, str(path))
        self.directory(path.parent).change((path.name, None))

    # What happens to disks

    def lose_power(self, random: Random, mode: Loss, unholed: str = "") -> None:
        """Lose, tear or keep the data that is not durable, by `mode`; drop all locks.

        Files in directories named `unholed` are torn where others would get holes."""
        numbers: list[int] = []
        for node in self._nodes():
            numbers += (entry[0] for entry in node.pending)
        numbers.sort()
        never = next(_numbers)

        def until(choices: list[int]) -> int:
            if mode is Loss.ALL:
                return -1
            return never if mode in (Loss.NONE, Loss.SHORT, Loss.HOLES) else random.choice([*choices, never])

        for_all = until(numbers)
        seen: set[int] = set()

        def visit(node: Node, name: str = "", inside: str = "") -> None:
            if id(node) in seen:
                return
            seen.add(id(node))
            own = for_all
            is_unholed = mode is Loss.HOLES and bool(inside) and inside == unholed
            if mode is Loss.ANY:
                own = until([entry[0] for entry in node.pending])
            elif is_unholed and isinstance(node, File):
                own = random.choice([*(entry[0] for entry in node.pending), never])
            elif mode is Loss.SHORT and isinstance(node, File) and node.pending:
                own = node.pending[-1][0]
            if isinstance(node, File):
                if mode is Loss.HOLES and not is_unholed:
                    node.forget_some(random)
                node.lose_power(random, own)
                return
            node.lose_power(own)
            for child in sorted(node.names):
                visit(node.names[child], child, name)

        visit(self.root)
        self.locks.clear()

    def _nodes(self) -> Iterator[Node]:
        """Yield all files and directories with a visible or durable name; some more than once."""
        waiting: list[Node] = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            if isinstance(node, Directory):
                waiting += node.names.values()
                waiting += (one for name, one in node.durable.items() if node.names.get(name) is not one)

    def copy(self) -> Platter:
        """Return a copy of the visible disk, all of it durable, without locks."""
        other = Platter()
        other.root = _copy(self.root)
        return other

    def files(self, below: PurePath) -> Iterator[tuple[str, File]]:
        """Paths and files below a directory, in the order of their names."""
        try:
            node = self.find(below)
        except OSError:
            return
        yield from _files(str(below), node)

    def durable_file(self, path: PurePath) -> bytes | None:
        """Return the durable bytes of a file; None without a durable name."""
        node: Node | None = self.root
        for name in _parts(path):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        return bytes(node.durable) if isinstance(node, File) else None

    def forget(self, path: PurePath) -> None:
        """Remove `path` for good, durable or not."""
        parent = self.directory(path.parent)
        for names in (parent.names, parent.durable):
            names.pop(path.name, None)
        # Remove its pending changes too: a loss of power must not restore the name.
        kept = (
            (number, tuple(one for one in names if one[0] != path.name)) for number, names in parent.pending
        )
        parent.pending = [(number, names) for number, names in kept if names]

    def restore(self, path: PurePath, past: Platter) -> None:
        """Put the directory `path` of an earlier copy in the place of this one, durably."""
        self.forget(path)
        parent = self.directory(path.parent)
        parent.names[path.name] = parent.durable[path.name] = _copy(past.directory(path))


def _files(path: str, node: Node) -> Iterator[tuple[str, File]]:
    if isinstance(node, File):
        yield path, node
        return
    for name in sorted(node.names):
        yield from _files(f"{path}/{name}", node.names[name])


def _copy(directory: Directory) -> Directory:
    other = Directory()
    for name, node in directory.names.items():
        twin: Node
        if isinstance(node, File):
            twin = File()
            twin.data = bytearray(node.data)
            twin.durable = bytearray(node.data)
            twin.modified_ms = node.modified_ms
        else:
            twin = _copy(node)
        other.names[name] = other.durable[name] = twin
    return other


def _parts(path: PurePath) -> list[str]:
    return [name for name in str(path).split(_SEPARATOR) if name and name != "."]
