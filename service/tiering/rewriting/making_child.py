"""Objects of runs made by a child process, which has a client of the store of its own.

A thread of the node that makes them delays the event loop: a run of a thousand small objects is some hundred
thousand calls in Python, and clients of stores hash what they upload at the node's own priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.base.child_process import ChildProcess, SendMessage
from service.base.clock import Clock
from service.base.disk import Open
from service.base.errors import ConfigError, StorageError
from service.base.world import World, system_world
from service.records.walk import find_offset
from service.remote.metrics import StoreMetrics
from service.remote.stores.counted_store import CountedStore, NodeStore
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.proven_uploads import ProvenUploads
from service.remote.stores.store_address import StoreAddress
from service.tiering.copier import CallProgress
from service.tiering.ports import SegmentRun
from service.tiering.rewriting.making import MakeOrder, MakerHere
from service.tiering.rewriting.run_object import MadeObject

_SEND_MS: Final = 100
"""Least time between two signs of progress: each costs the node a switch of threads."""
_UPLOAD_BYTES: Final = 1 << 20
"""Bytes to upload for which the child asks at a time, once it was allowed to begin."""


class LocalSegment(NamedTuple):
    """A local segment by its path, as a `SegmentRun` without the node's open files and indexes.

    The file may have been deleted or replaced since: then its bytes are missing or others, and those of the
    bucket are taken.
    """

    path: Path
    base_offset: int
    size: int
    is_held: bool = False

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def file(self) -> LocalSegment:
        return self

    def read(self, position: int, size: int) -> bytes:
        data = self._pread(size, position)
        if len(data) < size:
            raise StorageError(f"{self.path} ends at {position + len(data)}")
        return data

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends at or behind `offset`, by a walk from the file's
        beginning."""
        if not self.size or offset <= self.base_offset:
            return 0
        place = find_offset(self._pread, offset, 0, self.size, self.name)
        return self.size if place is None else place.position

    def _pread(self, size: int, position: int) -> bytes:
        disk = _world().disk
        fd = disk.open(self.path, Open.READ)
        try:
            return disk.pread(fd, size, position)
        finally:
            disk.close(fd)


class _Moved(NamedTuple):
    """Message of the child: bytes that it has verified and uploaded since the last one, and those that it
    uploads now, for which it waits for a reply."""

    moved: int
    upload: int


class ChildMaker:
    """`ObjectMaker` of a child process."""

    def __init__(self, address: StoreAddress, metrics: StoreMetrics, child: ChildProcess) -> None:
        """`metrics` count the child's calls of the store, too."""
        self._address = address
        self._metrics = metrics
        self._child = child

    def make(
        self,
        order: MakeOrder,
        local: Sequence[SegmentRun],
        progress: CallProgress,
        spend: Callable[[int], None],
    ) -> MadeObject:
        """Do what `ObjectMaker.make` says. Raises `ChildEnded`, too."""

        def receive(message: Any) -> None:
            if isinstance(message, StoreMetrics):
                self._metrics.add(message)
                return
            progress.advance(message.moved)
            if message.upload:
                spend(message.upload)

        made: MadeObject = self._child.call(
            make_object, self._address, order, [_by_path(one) for one in local],
            on_message=receive, on_silence=lambda: progress.advance(0),
        )  # fmt: skip
        return made

    def rest(self) -> None:
        self._child.end()

    def close(self) -> None:
        self._child.close()


def _by_path(run: SegmentRun) -> LocalSegment:
    return LocalSegment(Path(run.name), run.base_offset, run.size)


def make_object(
    address: StoreAddress, order: MakeOrder, local: Sequence[LocalSegment], send: SendMessage
) -> MadeObject:
    """Make the object; called in the child."""
    metrics = StoreMetrics()
    store = CountedStore(_opened(address), metrics, _world().clock)
    progress = _SentProgress(send, _world().clock)
    maker = MakerHere(ProvenUploads(store, store.verifies_uploads))
    try:
        made = maker.make(order, local, progress, progress.spend)
        progress.flush()
        return made
    finally:
        send(metrics)


class _SentProgress(CallProgress):
    """Progress of which the node is informed now and then, and asked before uploads."""

    __slots__ = ("_clock", "_may_upload", "_send", "_sent_bytes", "_sent_ms", "_upload")

    def __init__(self, send: SendMessage, clock: Clock) -> None:
        super().__init__()
        self._send = send
        self._clock = clock
        self._sent_bytes = 0
        self._sent_ms = clock.monotonic_ms()
        self._upload = 0
        """bytes that are uploaded and were not asked for yet"""
        self._may_upload = False

    def advance(self, size: int) -> None:
        super().advance(size)
        if self._clock.monotonic_ms() - self._sent_ms >= _SEND_MS:
            self.flush()

    def spend(self, size: int) -> None:
        """Ask before anything is uploaded, and before more is; raises as `SendMessage`."""
        self._upload += size
        if not self._may_upload or self._upload >= _UPLOAD_BYTES:
            self.flush()
            self._may_upload = True

    def flush(self) -> None:
        """Send what was not sent yet, and wait for the reply where some of it is an upload."""
        moved, upload = self.moved_bytes - self._sent_bytes, self._upload
        self._sent_bytes, self._upload = self.moved_bytes, 0
        self._send(_Moved(moved, upload), wants_reply=upload > 0)
        self._sent_ms = self._clock.monotonic_ms()


@lru_cache(maxsize=1)
def _world() -> World:
    return system_world()


@lru_cache(maxsize=1)
def _opened(address: StoreAddress) -> NodeStore:
    """Return the client, which the next orders use, too."""
    try:
        return address.open(_world())
    except ConfigError as e:  # the node has opened it: what a client needs has changed since
        raise StoreUnavailable(f"{address.url} cannot be opened (any more): {e}") from e
