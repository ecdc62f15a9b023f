"""The ``quorum-state`` file on disk; `raft.state` has its bytes. Blocking; for a `log-io` thread."""

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
    """The state in `directory`, None where none was ever written; `CorruptionError` names the file."""
    path = directory / FILE_NAME
    try:
        return decode_state(read_file(disk, path, _MAX_BYTES))
    except MissingFile:
        return None
    except CorruptionError as e:
        raise CorruptionError(f"{path}: {e}") from e


def write_state(disk: Disk, directory: Path, state: QuorumState) -> None:
    """Replace the file; it is on disk when this returns."""
    write_atomically(disk, directory / FILE_NAME, encode_state(state))
