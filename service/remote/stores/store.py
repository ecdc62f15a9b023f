"""Protocol of an object store. [P]

Every backend passes the same contract suite (tests/contract). Calls are synchronous and thread-safe, release
the GIL while they wait, and are made from pool threads only, never from the event loop. Keys are
``/``-separated, relative to the prefix the store was opened with, and never begin or end with ``/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from service.base.types import Buffer


class ObjectInfo(NamedTuple):
    """One object in a listing. `etag` is empty where the backend has none."""

    key: str
    size: int
    last_modified_ms: int
    etag: str


class Tagged(NamedTuple):
    """A whole object and the tag of this version for `put_if_match`; only the store interprets `tag`."""

    data: bytes
    tag: str


class ObjectStore(Protocol):
    """A flat map from keys to immutable byte strings.

    Every method may raise `StoreUnavailable` (retry later) or `StoreRefused` (an operator has to act).
    """

    def put(self, key: str, data: Buffer) -> None:
        """Write one object, replacing any other; readers see all of it or, before, nothing of it."""

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        """Write one object of exactly `size` bytes from buffers of any size, without holding it in memory.

        A single PUT when it fits one part, multipart otherwise. Any error (the store's, the iterable's, parts
        that do not add up to `size`) is raised, no object appears, and the multipart upload is aborted. A
        buffer must not change after it was yielded.
        """

    def get(self, key: str, *, max_size: int) -> bytes:
        """Return the whole object. Raises `ObjectNotFound`; `CorruptionError` when it exceeds `max_size`
        bytes."""

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return exactly `length` (at least 1) bytes from `start`, possibly a view of the client's memory.

        Raises `ObjectNotFound`; `ObjectTruncated` when the object ends before ``start + length``.
        """

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """Return the last `length` (at least 1) bytes, or the whole object if smaller, and the object's
        size."""

    def head(self, key: str) -> ObjectInfo:
        """Return size, time and tag of one object. Raises `ObjectNotFound`."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below the folder `prefix` (``""`` for all), at any depth, in byte order of their
        keys."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing key is not an error."""

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Write one object unless the key exists; return False (and write nothing) when it does.

        Where a first request was executed and its answer lost, False may mean our own object:
        `conditional.create` tells.
        """

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        """Return the whole object with its tag. Raises as `get`."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        """Replace the object if its tag still is `tag`; otherwise raise `PreconditionFailed` and write
        nothing.

        After a lost answer that error, too, may mean our own object: see `conditional.replace`.
        """
