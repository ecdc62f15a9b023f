"""Names of files and directories (Kafka `LogFileUtils`, `LocalLog`). [P]

<topic>-<partition>/                            one replica
<topic>-<partition>.<32 hex digits>-delete/     its files wait for deletion
<topic>-<partition>.<32 hex digits>-stray/      a replica that no longer belongs to this node's metadata
    00000000000000000000.log .index .timeindex .txnindex .snapshot
    00000000000000000000.log.deleted            a segment waits for deletion
    00000000000000000000.log.cleaned .log.swap  a compacted segment before its swap; see `cleaning.swap`
    leader-epoch-checkpoint   partition.metadata   erasures
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
RESTART_SNAPSHOT: Final = "restart.snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)

DELETE_DIR: Final = "-delete"
STRAY_DIR: Final = "-stray"
FUTURE_DIR: Final = "-future"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
ERASURES: Final = "erasures"
CLUSTER_METADATA_DIR: Final = "__cluster_metadata-0"

_OFFSET_DIGITS: Final = 20
_MAX_NAME: Final = 255
_PARTITION_DIR: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_OFFSET_FILE: Final = re.compile(r"([0-9]{20})(\.[a-z]+)")


def offset_file(base_offset: int, suffix: str) -> str:
    """Return the file name for `base_offset`.

    >>> offset_file(42, LOG)
    '00000000000000000042.log'
    """
    return f"{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """Parse (base offset, suffix) of a name made by `offset_file`; None for any other name."""
    match = _OFFSET_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_dir(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    """Parse (topic, partition) of a replica's directory; None for any other name.

    >>> parse_partition_dir("a-b-7")
    ('a-b', 7)
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or match["topic"] in (".", ".."):
        return None
    partition = int(match["partition"])
    return (match["topic"], partition) if partition < 2**31 else None


def retired_dir(topic: str, partition: int, unique: UUID, suffix: str) -> str:
    """Return the name for a replica's directory that is not in use any more; a long topic name is cut."""
    tail = f"-{partition}.{unique.hex}{suffix}"
    return topic[: _MAX_NAME - len(tail)] + tail
