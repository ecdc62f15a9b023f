"""Store whose writes are compared with what arrived, where the store does not do that itself.

After a commit local bytes may be deleted, so the stored bytes must be those that were sent. S3 compares each
request with the SHA-256 that it is signed with; other stores accept whatever arrives. From those every object
is read back, a window at a time, and compared by the checksums of the sent bytes. That costs a download,
which a store that compares itself does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged

WINDOW_BYTES: Final = 8 << 20


class UploadDamaged(StoreUnavailable):
    """Other bytes than those sent have arrived. Send again, under another key where keys are never reused."""


class ProvenUploads:
    """`ObjectStore` over `inner`. `verifies` returns whether `inner` itself refuses damaged uploads.

    A write that cannot be read back raises what the read raises: then it is not known what arrived. `arrived`
    is called with each verified `put`. Thread-safe.
    """

    def __init__(
        self,
        inner: ObjectStore,
        verifies: Callable[[], bool],
        arrived: Callable[[str, Buffer], None] = lambda key, data: None,
    ) -> None:
        self._inner = inner
        self._verifies = verifies
        self._arrived = arrived

    def put(self, key: str, data: Buffer) -> None:
        self._inner.put(key, data)
        self._compare(key, data)
        self._arrived(key, data)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        if self._verifies():
            self._inner.put_stream(key, parts, size)
            return
        sums = _Sums()
        self._inner.put_stream(key, sums.of(parts), size)
        for number, expected in enumerate(sums.windows):
            start = number * WINDOW_BYTES
            data = self._inner.get_range(key, start, min(WINDOW_BYTES, size - start))
            if crc32c(data) != expected:
                raise UploadDamaged(f"{key}: other bytes than those sent arrived, from byte {start} on")

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        created = self._inner.put_if_absent(key, data)
        if created:
            self._compare(key, data)
        return created

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self._inner.put_if_match(key, data, tag)
        self._compare(key, data)

    def _compare(self, key: str, data: Buffer) -> None:
        if self._verifies():
            return
        try:
            arrived = self._inner.get(key, max_size=max(len(data), 1))
        except (ObjectNotFound, CorruptionError) as e:
            raise UploadDamaged(f"{key}: the stored object is not the one that was sent: {e}") from e
        if arrived != data:
            raise UploadDamaged(f"{key}: other bytes than those sent arrived, or it was replaced already")

    def get(self, key: str, *, max_size: int) -> bytes:
        return self._inner.get(key, max_size=max_size)

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return self._inner.get_tagged(key, max_size=max_size)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._inner.get_range(key, start, length)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return self._inner.get_suffix(key, length)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._inner.delete(keys)


class _Sums:
    """Checksums of passing buffers, one for each `WINDOW_BYTES` and one for the rest."""

    def __init__(self) -> None:
        self.windows: list[int] = []
        self._filled = WINDOW_BYTES

    def of(self, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        for part in parts:
            self._add(memoryview(part))
            yield part

    def _add(self, part: memoryview) -> None:
        while len(part):
            if self._filled == WINDOW_BYTES:
                self.windows.append(0)
                self._filled = 0
            piece = part[: WINDOW_BYTES - self._filled]
            self.windows[-1] = crc32c(piece, self.windows[-1])
            self._filled += len(piece)
            part = part[len(piece) :]
