"""Valid ends of a partition's files: as they are read now, or as a loss of power now would leave them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from service.base.errors import CorruptionError
from service.records.batch import complete_headers, verify_crc
from simulator.power_loss import Directory, File, Node, Platter


def durable_end(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int) -> int:
    """Return the end of the batches that are all valid, flushed, and in files with a durable name."""
    return _end_of(platter, log_dirs, topic, partition, durable=True)


def whole_end(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int) -> int:
    """Return the end of the batches that are all valid, as a process reads them."""
    return _end_of(platter, log_dirs, topic, partition, durable=False)


def segment_bases(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int) -> list[int]:
    """Return the base offsets of the existing segment files, ascending."""
    names = _files(platter, log_dirs, topic, partition, durable=False)
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))


def segments(
    platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int, offset: int
) -> Iterator[bytes]:
    """Yield the bytes of the segments that hold `offset` and later ones, as a process reads them."""
    names = _files(platter, log_dirs, topic, partition, durable=False)
    # Asked for at almost every turn: names are in the order of their offsets.
    logs = sorted([name for name in names if name[-4:] == ".log"])
    for name in logs[max(bisect_right(logs, f"{offset:020}.log") - 1, 0) :]:
        file = names[name]
        if isinstance(file, File):
            yield bytes(file.data)


def _end_of(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int, *, durable: bool) -> int:
    return _end(_files(platter, log_dirs, topic, partition, durable=durable), durable)


def _files(
    platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int, *, durable: bool
) -> dict[str, Node]:
    for log_dir in log_dirs:
        node: Node | None = platter.root
        for name in (*[part for part in log_dir.parts if part != "/"], f"{topic}-{partition}"):
            node = _names(node, durable).get(name) if isinstance(node, Directory) else None
        if isinstance(node, Directory):
            return _names(node, durable)
    return {}


def _names(directory: Directory, durable: bool) -> dict[str, Node]:
    return directory.durable if durable else directory.names


def _end(names: dict[str, Node], durable: bool) -> int:
    end: int | None = None
    for name in sorted(name for name in names if name.endswith(".log")):
        file = names[name]
        base = int(name.removesuffix(".log"))
        if not isinstance(file, File) or (end is not None and base != end):
            break
        end = base
        data = bytes(file.durable if durable else file.data)
        try:
            for header in complete_headers(data):
                if header.base_offset != end or not verify_crc(data, header):
                    return end
                end = header.next_offset
        except CorruptionError:
            return end
    return end or 0


def durable_logs(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int) -> list[bytes]:
    """Return the flushed bytes of each segment with a durable name, in the order of their offsets."""
    names = _files(platter, log_dirs, topic, partition, durable=True)
    files = (names[name] for name in sorted(names) if name.endswith(".log"))
    return [bytes(file.durable) for file in files if isinstance(file, File)]
