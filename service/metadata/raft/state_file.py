"""Reads and writes the ``quorum-state`` file; `raft.state` encodes it. Blocking; for a `log-io` thread."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.base.disk import Disk, MissingFile
from service.base.errors import CorruptionError
from service.base.files import read_file, write_atomically
from service.metadata.raft.state import QuorumState, decode_state, encode_state

FILE_NAME: Final = "quorum-state"
_MAX_BYTES: Final = 1 << 20


def read_state(disk: Disk, directory: Path) -> QuorumState | None:
    """Return the state in `directory`, or None where no file exists. `CorruptionError` names the file."""
    path = directory / FILE_NAME
    try:
        return decode_state(read_file(disk, path, _MAX_BYTES))
    except MissingFile:
        return None
    except CorruptionError as e:
        raise CorruptionError(f"{path}: {e}") from e


def write_state(disk: Disk, directory: Path, state: QuorumState) -> None:
    """Replace the file durably."""
    write_atomically(disk, directory / FILE_NAME, encode_state(state))
