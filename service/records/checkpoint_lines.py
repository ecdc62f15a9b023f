"""The lines of Kafka's checkpoint files: leader epochs, and offsets of partitions. [P]

    leader-epoch-checkpoint             <epoch> <start offset>          both ascending
    *-offset-checkpoint                 <topic> <partition> <offset>

What stands around the lines (version and count) is `base.files`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.base.errors import CorruptionError

EpochEntry = tuple[int, int]
"""(leader epoch, its first offset)"""


def encode_epochs(entries: Iterable[EpochEntry]) -> list[str]:
    """Lines of epochs.

    >>> encode_epochs([(0, 0), (3, 17)])
    ['0 0', '3 17']
    """
    return [f"{epoch} {start}" for epoch, start in entries]


def decode_epochs(lines: Iterable[str]) -> list[EpochEntry]:
    """Entries as they stand there; `CorruptionError` for a line that is none."""
    entries = []
    for line in lines:
        try:
            epoch, start = map(int, line.split())
        except ValueError:
            raise CorruptionError(f"not an epoch and an offset: {line!r}") from None
        if epoch < 0 or start < 0:
            raise CorruptionError(f"negative: {line!r}")
        entries.append((epoch, start))
    return entries


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> list[str]:
    """Lines of offsets by (topic, partition)."""
    return [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]


def decode_offsets(lines: Iterable[str]) -> dict[tuple[str, int], int]:
    """Offsets by (topic, partition); `CorruptionError` for a line that is none.

    >>> decode_offsets(["a 0 17"])
    {('a', 0): 17}
    """
    offsets = {}
    for line in lines:
        topic, partition, offset = [*line.rsplit(" ", 2), "", ""][:3]
        if not (topic and partition.isdigit() and offset.isdigit()):
            raise CorruptionError(f"expected topic, partition and offset: {line!r}")
        offsets[topic, int(partition)] = int(offset)
    return offsets
