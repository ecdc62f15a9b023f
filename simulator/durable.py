"""What of a partition would still be on the disk if the power failed now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from service.base.errors import CorruptionError
from service.records.batch import complete_headers, verify_crc
from simulator.platter import Directory, File, Node, Platter


def durable_end(platter: Platter, log_dirs: Iterable[Path], topic: str, partition: int) -> int:
    """The offset behind the last batch up to which every one is whole, flushed, and under a durable name."""
    for log_dir in log_dirs:
        node: Node | None = platter.root
        for name in (*[part for part in log_dir.parts if part != "/"], f"{topic}-{partition}"):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        if isinstance(node, Directory):
            return _end(node)
    return 0


def _end(directory: Directory) -> int:
    segments = sorted(name for name in directory.durable if name.endswith(".log"))
    end: int | None = None
    for name in segments:
        file = directory.durable[name]
        base = int(name.removesuffix(".log"))
        if not isinstance(file, File) or (end is not None and base != end):
            break
        end = base
        data = bytes(file.durable)
        try:
            for header in complete_headers(data):
                if header.base_offset != end or not verify_crc(data, header):
                    return end
                end = header.next_offset
        except CorruptionError:
            return end
    return end or 0
