"""An object store that is slow, fails, reports wrong results, and returns damaged bodies.

`Bucket` holds the objects for all processes; `SimStore` is one process's client of it. Threads make the
calls, which take virtual time, so the bucket changes between them. A call whose response is lost is done; a
write may even be done after it was reported as failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, NamedTuple, Protocol

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.stores.errors import (
    AccessRefused,
    ObjectAsleep,
    ObjectNotFound,
    ObjectTruncated,
    PreconditionFailed,
    StoreThrottled,
    StoreUnavailable,
)
from service.remote.stores.store import ObjectInfo, Tagged
from simulator.loop import Loop
from simulator.process import Process
from simulator.threads import SimThreads
from simulator.trace import Trace

_CALL_S: Final = 0.03
_LATEST_S: Final = 20.0


class Object(NamedTuple):
    """One version of one object; `by` is the process that wrote it."""

    data: bytes
    tag: str
    modified_ms: int
    by: str = ""


class Deletion(NamedTuple):
    """One object that went, and on whose behalf."""

    key: str
    data: bytes
    by: str


@dataclass(eq=False)
class Sent:
    """A call that writes or deletes; `arrive` does what it asks for."""

    call: str
    key: str
    by: str
    arrive: Callable[[], object]
    is_under_way: bool = True
    """whether it has not reached the bucket yet, and nobody has failed it"""


class Bucket:
    """Objects of the bucket. `on_delete` is called before each deletion, `on_write` before each write with
    the key, the new bytes, the old ones and who writes; `on_sent` when a process sends either."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.writes = 0
        self.on_delete: Callable[[Deletion], None] = lambda _: None
        self.on_write: Callable[[str, bytes, bytes | None, str], None] = lambda *_: None
        self.on_sent: Callable[[Sent], None] = lambda _: None
        self.under_way: Counter[str] = Counter()
        """by process: calls that write or delete and have not returned"""
        self.late_calls_outlive = False
        """whether a late call arrives although its process is dead by then"""

    def write(self, key: str, data: bytes, now_ms: int, by: str = "") -> None:
        self.writes += 1
        replaced = self.objects.get(key)
        self.on_write(key, data, replaced.data if replaced is not None else None, by)
        self.objects[key] = Object(data, f"tag-{self.writes}", now_ms, by)

    def delete(self, key: str, by: str) -> None:
        found = self.objects.get(key)
        if found is not None:
            self.on_delete(Deletion(key, found.data, by))
            del self.objects[key]

    def copy(self) -> dict[str, Object]:
        """Copy the objects, for a later rollback."""
        return dict(self.objects)


class Verdict(Enum):
    """Outcome of one call."""

    DONE = "done"
    FAILS = "fails, nothing is done"
    LOST = "is done, and its answer lost"
    LATE = "fails, and is done later"
    REFUSED = "is refused"
    ASLEEP = "finds the object in an archive class"
    THROTTLED = "is throttled"
    CUT = "brings less than there is"
    FLIPPED = "brings a bit that is wrong, either way"
    FLIPPED_SHARED = "leaves a bit that is wrong in an object that has one name for ever"


class StoreFaults(Protocol):
    """Chooses the calls that fail, and how. Called once for each call, in their order."""

    def judge(self, call: str, key: str) -> Verdict:
        """Return the outcome of this call."""

    def latency_s(self, call: str) -> float:
        """Return the seconds that this call takes beyond the usual."""


class NoStoreFaults:
    """A store that never fails."""

    def judge(self, call: str, key: str) -> Verdict:
        return Verdict.DONE

    def latency_s(self, call: str) -> float:
        return 0.0


class SimStore:
    """`service.remote.stores.store.ObjectStore` of one process."""

    def __init__(
        self,
        bucket: Bucket,
        loop: Loop,
        process: Process,
        threads: SimThreads,
        random: Random,
        faults: StoreFaults,
        trace: Trace,
        now_ms: Callable[[], int],
    ) -> None:
        self.bucket = bucket
        self._loop = loop
        self._process = process
        self._threads = threads
        self._random = random
        self._faults = faults
        self._trace = trace
        self._now_ms = now_ms
        self.calls = 0

    def verifies_uploads(self) -> bool:
        """Return False: the store checks no checksum, so the uploader has to."""
        return False

    # Writes

    def put(self, key: str, data: Buffer) -> None:
        content = bytes(data)
        self._write("put", key, content, lambda sent: self._put(key, sent))

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        data = bytearray()
        for part in parts:
            data += part
            self._threads.spend_up_to(_CALL_S)
        if len(data) != size:
            raise CorruptionError(f"{key}: {len(data)} bytes given, {size} announced")
        self._write("put_stream", key, bytes(data), lambda sent: self._put(key, sent))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        content = bytes(data)

        def write(sent: bytes) -> bool:
            if key in self.bucket.objects:
                return False
            self._put(key, sent)
            return True

        return self._write("put_if_absent", key, content, write)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        content = bytes(data)

        def write(sent: bytes) -> None:
            found = self.bucket.objects.get(key)
            if found is None or found.tag != tag:
                raise PreconditionFailed(f"{key}: not the object of tag {tag}")
            self._put(key, sent)

        self._write("put_if_match", key, content, write)

    def _put(self, key: str, sent: bytes) -> None:
        self.bucket.write(key, sent, self._now_ms(), self._process.name)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._delete(key)

    def _delete(self, key: str) -> None:
        self._write("delete", key, b"", lambda _: self.bucket.delete(key, self._process.name))

    # Reads

    def get(self, key: str, *, max_size: int) -> bytes:
        return self.get_tagged(key, max_size=max_size).data

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        verdict = self._begin("get", key)
        found = self._found(key)
        if len(found.data) > max_size:
            raise CorruptionError(f"{key}: {len(found.data)} bytes, at most {max_size} expected")
        return Tagged(self._arrives(key, found.data, verdict, whole=True), found.tag)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        verdict = self._begin("get_range", key)
        data = self._found(key).data
        if start + length > len(data):
            raise ObjectTruncated(f"{key}: ends at {len(data)}, bytes {start} to {start + length} asked for")
        return self._arrives(key, data[start : start + length], verdict, whole=True)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        verdict = self._begin("get_suffix", key)
        data = self._found(key).data
        return self._arrives(key, data[-length:], verdict, whole=True), len(data)

    def head(self, key: str) -> ObjectInfo:
        self._begin("head", key)
        return _info(key, self._found(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = f"{prefix}/" if prefix else ""
        self._begin("list", folder)
        names = sorted((key for key in self.bucket.objects if key.startswith(folder)), key=str.encode)
        pages = [names[at : at + 10] for at in range(0, len(names), 10)]
        for number, page in enumerate(pages):
            if number:
                self._begin("list", folder)
            for key in page:
                found = self.bucket.objects.get(key)
                if found is not None:
                    yield _info(key, found)

    # All calls

    def _write(self, call: str, key: str, data: bytes, write: Callable[[bytes], bool | None]) -> bool:
        under_way = self.bucket.under_way
        under_way[self._process.name] += 1
        try:
            return self._send(Sent(call, key, self._process.name, lambda: write(data)), data, write)
        finally:
            under_way[self._process.name] -= 1

    def _send(self, one: Sent, data: bytes, write: Callable[[bytes], bool | None]) -> bool:
        call, key = one.call, one.key
        self.bucket.on_sent(one)
        verdict = self._begin(call, key, one)
        damaged = verdict in (Verdict.FLIPPED, Verdict.FLIPPED_SHARED)
        sent = self._flipped(data) if damaged else data
        if verdict is Verdict.LATE:
            later = self._random.random() * _LATEST_S
            context = Context() if self.bucket.late_calls_outlive else None
            what = f"late {call} {key}"
            self._loop.call_later(later, arrive_late, self._trace, what, lambda: write(sent), context=context)
            raise StoreUnavailable(f"{call} {key}: no answer in time")
        done = write(sent)
        self._threads.spend_up_to(_CALL_S)
        if verdict is Verdict.LOST:
            raise StoreUnavailable(f"{call} {key}: the answer was lost")
        return bool(done)

    def _begin(self, call: str, key: str, sent: Sent | None = None) -> Verdict:
        """Spend the latency of a call; raise the error that it draws, or return its verdict."""
        if self._threads.current() is None:
            raise AssertionError(f"{call} {key}: the store is asked on the event loop")
        self.calls += 1
        self._threads.spend(self._faults.latency_s(call) + self._random.random() * _CALL_S)
        if sent is not None:
            sent.is_under_way = False
        verdict = self._faults.judge(call, key)
        self._trace.note(self._process.name, f"{call} {key}: {verdict.value}")
        if verdict is Verdict.FAILS:
            raise StoreUnavailable(f"{call} {key}: 503")
        if verdict is Verdict.THROTTLED:
            raise StoreThrottled(f"{call} {key}: 503 SlowDown")
        if verdict is Verdict.REFUSED:
            raise AccessRefused(f"{call} {key}: 403 AccessDenied")
        if verdict is Verdict.ASLEEP:
            raise ObjectAsleep(f"{call} {key}: 403 InvalidObjectState")
        return verdict

    def _found(self, key: str) -> Object:
        found = self.bucket.objects.get(key)
        if found is None:
            raise ObjectNotFound(key)
        return found

    def _arrives(self, key: str, data: bytes, verdict: Verdict, *, whole: bool) -> bytes:
        """Return a body as the process gets it. A cut body is noticed by its length, as clients do."""
        self._threads.spend_up_to(_CALL_S)
        if verdict in (Verdict.LOST, Verdict.LATE) or (verdict is Verdict.CUT and whole):
            raise StoreUnavailable(f"get {key}: the body ends early")
        return self._flipped(data) if verdict is Verdict.FLIPPED else data

    def _flipped(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]


def arrive_late(trace: Trace, what: str, write: Callable[[], object]) -> None:
    """Do what a call asked for whose sender does not wait for it any more."""
    try:
        write()
    except PreconditionFailed:
        trace.note("bucket", f"{what}: precondition failed")
    else:
        trace.note("bucket", what)


def _info(key: str, found: Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.modified_ms, found.tag)
