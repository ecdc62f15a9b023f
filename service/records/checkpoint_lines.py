"""Lines of Kafka's checkpoint files: leader epochs, and offsets of partitions. [P]

    leader-epoch-checkpoint             <epoch> <start offset>          both ascending
    *-offset-checkpoint                 <topic> <partition> <offset>

`base.files` reads and writes the lines around them (version and count).

Offsets of partitions decide what is deleted and what recovery checks; epochs decide what followers and
clients truncate. So a changed digit must be detected. Both files end in a checksum in a form that Apache
Kafka ignores when it reads and omits when it writes: for offsets, one more row under a name that is invalid
for a topic; for epochs, where every row counts, trailing white space in the last row, one character per bit
(a tab is 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from crc32c import crc32c

from service.base.errors import CorruptionError

EpochEntry = tuple[int, int]
"""(leader epoch, its first offset)"""


def encode_epochs(entries: Iterable[EpochEntry]) -> list[str]:
    """Return the lines of epochs; the last one ends in their checksum.

    >>> [line.rstrip() for line in encode_epochs([(0, 0), (3, 17)])]
    ['0 0', '3 17']
    """
    lines = [f"{epoch} {start}" for epoch, start in entries]
    return [*lines[:-1], lines[-1] + _unseen(lines)] if lines else []


def _unseen(lines: Sequence[str]) -> str:
    return f"{_crc(lines):032b}".translate(WHITE)


WHITE: Final = str.maketrans("01", " \t")


def decode_epochs(lines: Iterable[str]) -> list[EpochEntry]:
    """Parse lines of epochs; `CorruptionError` for a malformed line or a wrong checksum.

    Files written by Kafka have no checksum.

    >>> decode_epochs(["0 0", "3 17"])
    [(0, 0), (3, 17)]
    """
    rows = list(lines)
    if rows and (last := rows[-1].rstrip(" \t")) != rows[-1]:
        found = rows[-1][len(last) :]
        rows[-1] = last
        if found != _unseen(rows):
            raise CorruptionError("its checksum is wrong")
    entries = []
    for line in rows:
        try:
            epoch, start = map(int, line.split())
        except ValueError:
            raise CorruptionError(f"not an epoch and an offset: {line!r}") from None
        if epoch < 0 or start < 0:
            raise CorruptionError(f"negative: {line!r}")
        entries.append((epoch, start))
    return entries


CHECKSUM: Final = "#firn.crc32c"


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> list[str]:
    """Return the lines of offsets by (topic, partition), and their checksum.

    >>> encode_offsets({("a", 0): 17})
    ['a 0 17', '#firn.crc32c 0 1082267310']
    """
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return [*lines, _checksum(lines)]


def _checksum(lines: Sequence[str]) -> str:
    return f"{CHECKSUM} 0 {_crc(lines)}"


def _crc(lines: Sequence[str]) -> int:
    return int(crc32c("\n".join(lines).encode()))


def decode_offsets(lines: Iterable[str]) -> dict[tuple[str, int], int]:
    """Parse offsets by (topic, partition); `CorruptionError` for a malformed line or a wrong checksum.

    Files written by Kafka have no checksum.

    >>> decode_offsets(["a 0 17"])
    {('a', 0): 17}
    """
    rows = list(lines)
    if rows and rows[-1].startswith(CHECKSUM):
        expected = _checksum(rows[:-1])
        if rows.pop() != expected:
            raise CorruptionError("its checksum is wrong")
    offsets = {}
    for line in rows:
        topic, partition, offset = [*line.rsplit(" ", 2), "", ""][:3]
        if not (topic and partition.isdigit() and offset.isdigit()):
            raise CorruptionError(f"expected topic, partition and offset: {line!r}")
        offsets[topic, int(partition)] = int(offset)
    return offsets
