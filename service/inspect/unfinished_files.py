"""Unfinished uploads to a folder: files that a killed process has left, listed and deleted by `firn sweep`.

obstore writes an object into a file beside it, `<name>#<number>`, and renames that. No listing of objects
shows such files, no rule of a bucket takes them, and they have the records that were uploaded.

As in S3 (`unfinished_uploads`) an upload is never part of a log, so its age alone decides: whoever still
writes to a file that is deleted writes the object again, under a new key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from service.base.disk import Disk, DiskError, MissingFile
from service.inspect.unfinished_uploads import UnfinishedUpload
from service.remote.format.keys import parse_key
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.errors import StoreRefused

_UNFINISHED: Final = re.compile(r"(.+)#[0-9]+", re.DOTALL)


class UnfinishedFiles:
    """Unfinished uploads below the folder `root`. Calls block."""

    def __init__(self, disk: Disk, root: Path, now_ms: int) -> None:
        """`now_ms` by the clock of the folder's file system."""
        self._disk = disk
        self._root = root
        self._now_ms = now_ms

    def older_than(self, age_ms: int) -> Iterator[UnfinishedUpload]:
        """Yield the files for keys of this layout that were written last at least `age_ms` ago.

        Raises `StoreRefused` for a folder that cannot be listed.
        """
        folders = [self._root]
        while folders:
            folder = folders.pop()
            try:
                entries = self._disk.list(folder)
            except MissingFile:
                continue  # deleted meanwhile
            except DiskError as e:
                raise StoreRefused(str(e)) from e
            folders += [folder / entry.name for entry in entries if entry.is_dir]
            for entry in entries:
                path = folder / entry.name
                age = max(0, self._now_ms - entry.modified_ms)
                if entry.is_file and age >= age_ms and (key := self._key_of(path)) is not None:
                    yield UnfinishedUpload(key, path.relative_to(self._root).as_posix(), age)

    def _key_of(self, path: Path) -> str | None:
        """Return the key of the object that was to be written; None for any other file."""
        found = _UNFINISHED.fullmatch(path.relative_to(self._root).as_posix())
        if found is None:
            return None
        key = found[1]
        return key if key.startswith(f"{PROBE_PREFIX}/") or parse_key(key) is not None else None

    def abort(self, upload: UnfinishedUpload) -> bool:
        """Delete the file of `upload`; return whether it still existed. Raises `StoreRefused`."""
        try:
            self._disk.unlink(self._root / upload.upload_id)
        except MissingFile:
            return False  # finished or deleted since it was listed
        except DiskError as e:
            raise StoreRefused(str(e)) from e
        return True
