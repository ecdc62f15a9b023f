"""Sender of the parts of a response: memory through the transport, file ranges with ``sendfile``.

One rule keeps the order on the wire: a part is sent only when the transport's own buffer is empty, and while
a file is being sent nothing else is written. For that the transport's limits are zero: any backlog pauses the
sender, and its end resumes it. Memory is written in pieces, so a slow reader costs at most one piece besides
the response itself.

Memory before and after a file range is sent together with the range's bytes: alone it would be a packet that
wakes the reader for a few bytes. The head takes the first bytes of the range with it, read and joined; the
tail is kept with the last ones (TCP_CORK). A reader on the same machine that is woken with 64 KiB to read
stays behind the sender; with less it reads each packet as it comes, sleeps, and is woken for the next.
Microseconds of the sender's CPU for 1 MB, while readers stay behind and while they do not:

============================= ======  ====
head, slice and tail          behind  not
============================= ======  ====
one after the other           113     300
corked                        143     285
head with 64 KiB, then corked 126     180
============================= ======  ====

``sendfile`` is called directly, and waits through a duplicate of the socket's descriptor, because asyncio
does not allow watching a transport's descriptor: no task, no ``fstat`` and no toggling of read interest for
each range. Small ranges are read and joined with the head before them. Microseconds per response of 8 ranges
on loopback:

===============  =====  =====  =====  ======  =======
each range       4 KiB  32 KiB 64 KiB 256 KiB 1 MiB
read and joined  22     49     92     321     1127
os.sendfile      75     74     97     283     1046
loop.sendfile    228    252    268    453     1246
===============  =====  =====  =====  ======  =======

A transport that seals what it gets has no socket to send a file to. Ranges are read one behind the other into
a buffer that all connections of a server share, with the head before them, and sealed from there.

Large memory is sent from where it lies, with its head and what is behind it, by ``sendmsg``: the transport
would join the pieces and keep a copy of what the socket does not take.

Before bytes of a file are sent the sender asks whether they are in the page cache; if not, a thread
prefetches them (`sendfile_prefetch.py`), and other connections continue meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from service.base.errors import FirnError, StorageError
from service.base.turns import TurnTimes
from service.base.types import Buffer
from service.network.sendfile_prefetch import AHEAD_BYTES, ReadFile, SendfilePrefetcher

SMALL_SLICE_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
LEAD_BYTES = 64 << 10
"""Bytes of a response's first large range that are sent from memory, with the head; for twice as many
`malloc` makes a new mapping each time."""
TURN_BYTES = 2 << 20
"""Bytes of large ranges that all connections together send in one turn of the loop: about 2 ms."""
SHARED_TURN_BYTES = 256 << 10
"""The same while other connections get small responses and would wait: a quarter of a millisecond. Four
readers of the archive were not slower with the additional turns; with `TURN_BYTES` the median latency of
small requests beside them was twice as long.
"""
WIDE_SLICES = 32
"""A response of more than twice as many parts is limited by `TURN_BYTES`, however small its parts are."""
SLICE_BYTES = 8 << 10
"""Least number of bytes that a range counts for when it is read: the cost of the call."""
SHARED_S = 0.05
"""Time after a small response for which `SHARED_TURN_BYTES` applies."""
SEALED_WEIGHT = 2
"""How often a sealed byte counts in the turn's budget: to seal it costs as much as to send it."""
_CORK: int | None = getattr(socket, "TCP_CORK", None)


class PeerLost(FirnError):
    """The peer's socket is gone while something was being sent; not an error of the node."""


class OpenFile(ReadFile, Protocol):
    """A file that stays open while a reference to it exists."""

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        """See `Disk.sendfile`."""


class FileRange(Protocol):
    """A range of a file."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = Buffer | FileRange


class SendBudget:
    """Budget of the bytes of large parts that all connections send in one turn, with a queue for the rest."""

    __slots__ = (
        "_began", "_is_due", "_loop", "_room", "_shared_until", "_space", "_turns", "_waiting", "ahead",
        "has_small",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turns: TurnTimes, ahead: SendfilePrefetcher | None = None
    ) -> None:
        """`turns` tells the beginning of each turn; if turns are not measured, the budget is renewed when a
        sender has waited. `ahead`: without it the loop itself reads from the device.
        """
        self.ahead = ahead
        self._loop = loop
        self._turns = turns
        self._waiting: deque[ResponseSender] = deque()
        self._is_due = False
        self._began = turns.began
        self._shared_until = 0.0
        self.has_small = False
        """Whether a small response was sent since the last renewal."""
        self._room = TURN_BYTES
        self._space: memoryview | None = None

    @property
    def space(self) -> memoryview:
        """Memory for `PIECE_BYTES`, for the use of one sender until it returns to the loop."""
        if self._space is None:
            self._space = memoryview(bytearray(PIECE_BYTES))
        return self._space

    @property
    def room(self) -> int:
        """Bytes that may still be sent in this turn."""
        began = self._turns.began
        if began != self._began:
            self._began = began
            self._room = self._whole()
        return self._room

    def _whole(self) -> int:
        """Return the budget of a turn: small while other connections would wait for small responses."""
        now = self._loop.time()
        if self.has_small:
            self.has_small = False
            self._shared_until = now + SHARED_S
        return SHARED_TURN_BYTES if now < self._shared_until else TURN_BYTES

    def used(self, count: int) -> None:
        """Subtract `count` sent bytes from `room`."""
        self._room -= count

    def wait(self, sender: ResponseSender) -> None:
        """Let `sender` continue in a later turn."""
        self._waiting.append(sender)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            # A due timer runs last in a turn of asyncio's loop, after the reads of what peers have sent
            # meanwhile; `call_soon` would run first.
            self._loop.call_later(0, self._next_turn)

    def _next_turn(self) -> None:
        self._is_due = False
        self._began = self._turns.began
        self._room = self._whole()
        try:
            while self._waiting and self.room > 0:
                self._waiting.popleft().go_on()
        finally:
            if self._waiting:
                self._schedule_turn()


class ResponseSender:
    """Output of one connection. `on_sent` is called when all parts given to `send` are out, unless `send`
    returned True.
    """

    __slots__ = (
        "_at", "_corked", "_in_row", "_is_led", "_is_reading", "_is_sealed", "_is_tcp", "_is_wide", "_loop",
        "_on_progress", "_on_sent", "_outlet", "_parts", "_paused", "_refused_at", "_resident_to",
        "_small_bytes", "_socket", "_transport", "_watched", "taken_bytes",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        on_sent: Callable[[Exception | None], None],
        on_progress: Callable[[], None],
        outlet: SendBudget,
    ) -> None:
        self._loop = loop
        self._outlet = outlet
        self._in_row = False
        self._transport = transport
        self._on_sent = on_sent
        self._on_progress = on_progress
        self._parts: deque[Part] = deque()
        self._at = 0
        self._resident_to = 0
        """end of the prefetched or resident bytes of the next range"""
        self._is_reading = False
        """whether a thread prefetches the next bytes"""
        self.taken_bytes = 0
        """bytes that the kernel or the transport has accepted so far"""
        self._refused_at = -1
        """`taken_bytes` when the socket's buffer was first full in this response; -1 if it never was"""
        self._paused = False
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._is_tcp = self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6)
        self._corked = False
        self._is_wide = False
        """whether this response has so many parts that they count like large ones"""
        self._is_led = False
        """whether the beginning of this response's first large range is out"""
        # `sendfile` needs a socket: without one every range is read and written.
        self._small_bytes = SMALL_SLICE_BYTES if self._socket is not None else sys.maxsize
        self._is_sealed = bool(transport.get_extra_info("is_sealed"))
        self._watched: socket.socket | None = None
        transport.set_write_buffer_limits(high=0)

    @property
    def busy(self) -> bool:
        """True if anything is still to be sent."""
        return self._paused or bool(self._parts)

    def send(self, parts: Sequence[Part]) -> bool:
        """Start sending; return True if the kernel has accepted all of it. Raises `StorageError` if a file
        is short.
        """
        self._refused_at = -1
        if len(parts) == 1 and not self._paused and not self._parts:
            part = parts[0]
            if isinstance(part, (bytes, bytearray)) and len(part) <= PIECE_BYTES:
                self.taken_bytes += len(part)
                self._transport.write(part)
                if len(part) <= SMALL_SLICE_BYTES:
                    self._outlet.has_small = True
                return not self._paused
        self._parts.extend(parts)
        if len(self._parts) > 2 * WIDE_SLICES:
            self._is_wide = True
        before = self.taken_bytes
        is_out = self._push()
        if is_out and self.taken_bytes - before <= SMALL_SLICE_BYTES:
            self._outlet.has_small = True
        return is_out

    def paused(self) -> None:
        """Pause: the transport has a backlog."""
        self._paused = True
        self._refused()

    def resumed(self) -> None:
        """Resume: the transport's backlog is gone."""
        self._paused = False
        self._resume()

    def close(self) -> None:
        """Release files and descriptors; the transport is closed or about to be."""
        self._parts.clear()
        # Break the reference cycle with the connection, for the garbage collector.
        self._on_sent = self._on_progress = _ignore
        watched, self._watched = self._watched, None
        if watched is not None:
            self._loop.remove_writer(watched)
            watched.close()

    @property
    def moved_bytes(self) -> int | None:
        """Bytes of the response that the peer has received, without those in the kernel's buffer; None if
        that was never full."""
        return None if self._refused_at < 0 else self.taken_bytes - self._refused_at

    def _refused(self) -> None:
        if self._refused_at < 0:
            self._refused_at = self.taken_bytes

    def _resume(self) -> None:
        self._on_progress()
        try:
            done = self._push()
        except Exception as e:
            self._on_sent(e)
            return
        if done:
            self._on_sent(None)

    def _writable(self) -> None:
        assert self._watched is not None
        self._loop.remove_writer(self._watched)
        if not self._transport.is_closing():
            self._resume()

    def go_on(self) -> None:
        """Continue: the budget has room again."""
        self._in_row = False
        if self._parts and not self._transport.is_closing():
            self._resume()

    def _push(self) -> bool:
        while self._parts:
            if self._paused or self._in_row or self._is_reading:
                return False
            part = self._parts[0]
            is_small = _size(part) - self._at <= SMALL_SLICE_BYTES
            if (not is_small or self._is_wide or self._leads()) and self._outlet.room <= 0:
                self._in_row = True
                self._outlet.wait(self)
                return False
            if self._is_sealed:
                self._write_sealed()
            elif self._is_large_memory():
                if self._send_memory() == 0 and self._watch():
                    return False
            elif is_small or isinstance(part, (bytes, bytearray, memoryview)) or self._socket is None:
                self._write_memory()
            elif self._is_resident(part) and self._send_slice(part) == 0 and self._watch():
                return False
        self._is_led = self._is_wide = False
        if self._corked:
            self._cork(False)
        return not self._paused

    def _leads(self) -> bool:
        """Return whether the next part is the head of a large part and takes its first bytes with it."""
        if len(self._parts) == 1:
            return False
        then = self._parts[1]
        if isinstance(then, (bytes, bytearray, memoryview)):
            return len(then) > SMALL_SLICE_BYTES
        return not self._is_led and then.size > self._small_bytes

    def _is_large_memory(self) -> bool:
        """Return whether the next part, or the one that it leads, is memory to be sent from where it lies."""
        first = self._parts[0]
        if self._socket is None or not isinstance(first, (bytes, bytearray, memoryview)):
            return False
        if len(first) - self._at > SMALL_SLICE_BYTES:
            return True
        return self._leads() and isinstance(self._parts[1], (bytes, bytearray, memoryview))

    def _send_memory(self) -> int:
        """Send the next parts, as far as they are memory and the turn's budget goes; return how many bytes
        the kernel took."""
        pieces: list[Buffer] = []
        room, at = self._outlet.room, self._at
        for part in islice(self._parts, WIDE_SLICES):
            if room <= 0 or not isinstance(part, (bytes, bytearray, memoryview)):
                break
            pieces.append(memoryview(part)[at : at + room])
            room -= len(pieces[-1])
            at = 0
        if (own := self._duplicate()) is None:
            return 0
        try:
            sent = own.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError as e:
            raise PeerLost(str(e)) from e
        self._outlet.used(sent)
        left = sent
        while left > 0:
            size = _size(self._parts[0])
            count = min(left, size - self._at)
            self._advance(count, size)
            left -= count
        self._on_progress()
        return sent

    def _write_memory(self) -> None:
        """Write the next bytes in one piece: memory, its small neighbours, and once in a response the
        beginning of a large range behind them. Write nothing if a thread must prefetch the first range.
        """
        piece: list[Buffer] = []
        room, slices = PIECE_BYTES, 0
        while self._parts and room > 0 and slices < WIDE_SLICES:
            part = self._parts[0]
            if isinstance(part, (bytes, bytearray, memoryview)):
                if piece and self._is_large_memory():
                    break
                data: Buffer = part
                if self._at or len(part) > room:
                    data = memoryview(part)[self._at : self._at + room]
                size = len(part)
            else:
                size = part.size
                is_lead = size - self._at > self._small_bytes
                if is_lead and (self._is_led or self._outlet.room <= 0):
                    break
                found = self._read_nowait(part, min(LEAD_BYTES if is_lead else PIECE_BYTES, room))
                if found is None:
                    if not piece:
                        self._read_ahead(part)
                        return
                    break
                data = found
                slices += 1
                self._is_led = self._is_led or is_lead
            piece.append(data)
            room -= len(data)
            self._advance(len(data), size)
        used = PIECE_BYTES - room
        if used > SMALL_SLICE_BYTES or self._is_wide:
            self._outlet.used(max(used, slices * SLICE_BYTES))
        self._transport.write(piece[0] if len(piece) == 1 else b"".join(piece))
        if self._parts and room > 0 and not self._corked:
            self._cork(True)

    def _write_sealed(self) -> None:
        """Write the next bytes in one piece, as `_write_memory` does, without joining them in new memory."""
        space, filled, begin, slices = self._outlet.space, 0, 0, 0
        pieces: list[Buffer] = []
        room = PIECE_BYTES
        while self._parts and room > 0 and slices < WIDE_SLICES:
            part = self._parts[0]
            if isinstance(part, (bytes, bytearray, memoryview)):
                size, data = len(part), memoryview(part)[self._at : self._at + room]
                is_large = len(data) > SMALL_SLICE_BYTES
                if is_large and filled == begin:
                    count = len(data)
                    pieces.append(data)
                else:
                    data = data[:SMALL_SLICE_BYTES]
                    count = len(data)
                    space[filled : filled + count] = data
                    filled += count
                    if is_large:  # what is before it goes out with its beginning
                        pieces.append(space[begin:filled])
                        begin = filled
            else:
                size, count = part.size, min(part.size - self._at, room)
                if self._at < self._resident_to:
                    count = min(count, self._resident_to - self._at)
                if not self._fill(part, space[filled : filled + count]):
                    if room == PIECE_BYTES:
                        self._read_ahead(part)
                        return
                    break
                slices += 1
                filled += count
            room -= count
            self._advance(count, size)
        if filled > begin:
            pieces.append(space[begin:filled])
        used = PIECE_BYTES - room
        if used > SMALL_SLICE_BYTES or self._is_wide:
            self._outlet.used(SEALED_WEIGHT * max(used, slices * SLICE_BYTES))
        self._transport.writelines(pieces)

    def _fill(self, part: FileRange, space: memoryview) -> bool:
        """Read the next bytes of the range; return False if that would wait."""
        position = part.position + self._at
        if part.file.fill_nowait(space, position):
            return True
        if self._outlet.ahead is not None and self._at >= self._resident_to:
            return False
        data = part.file.pread(len(space), position)
        if len(data) != len(space):
            raise StorageError(
                f"file ends {len(space) - len(data)} bytes before the slice that is being sent"
            )
        space[:] = data
        return True

    def _cork(self, on: bool) -> None:
        """Make the kernel hold back a partial packet until more comes, or send what it held back."""
        if _CORK is None or not self._is_tcp:
            return
        assert self._socket is not None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, _CORK, on)
        except OSError as e:
            raise PeerLost(str(e)) from e
        self._corked = on

    # -- pages that are not in the page cache

    def _read_nowait(self, part: FileRange, most: int) -> Buffer | None:
        """Return at most `most` next bytes of the range; None if reading them would wait."""
        position, wanted = part.position + self._at, min(part.size - self._at, most)
        if self._outlet.ahead is not None:
            if self._at >= self._resident_to:
                return part.file.pread_nowait(wanted, position)
            wanted = min(wanted, self._resident_to - self._at)
        data = part.file.pread(wanted, position)
        if len(data) != wanted:
            raise StorageError(f"file ends {wanted - len(data)} bytes before the slice that is being sent")
        return data

    def _is_resident(self, part: FileRange) -> bool:
        """Return whether the next bytes are resident; if not, start a prefetch."""
        if self._outlet.ahead is None:
            self._resident_to = part.size
        if self._at < self._resident_to:
            return True
        size = min(part.size - self._at, AHEAD_BYTES)
        if part.file.is_resident(size, part.position + self._at):
            self._resident_to = self._at + size
            return True
        self._read_ahead(part)
        return False

    def _read_ahead(self, part: FileRange) -> None:
        """Prefetch the next bytes on a thread. Afterwards they are sent even if the pages were evicted again.
        Meanwhile the node does not wait for the peer."""
        assert self._outlet.ahead is not None
        size = min(part.size - self._at, AHEAD_BYTES)
        self._resident_to = self._at + size
        self._is_reading = True
        self._refused_at = -1
        reading = self._outlet.ahead.read(part.file, size, part.position + self._at)
        reading.add_done_callback(self._was_read)

    def _was_read(self, reading: asyncio.Future[None]) -> None:
        self._is_reading = False
        error = None if reading.cancelled() else reading.exception()
        if not self._parts or self._transport.is_closing():
            return
        if isinstance(error, Exception):
            self._on_sent(error)
        else:
            self._resume()

    # -- files

    def _send_slice(self, part: FileRange) -> int:
        assert self._socket is not None
        try:
            size = min(part.size, self._resident_to) - self._at
            size = min(size, self._outlet.room)
            sent = part.file.send_to(self._socket.fileno(), size, part.position + self._at)
        except BlockingIOError:
            return 0
        except (ConnectionError, TimeoutError) as e:
            raise PeerLost(str(e)) from e
        if sent == 0:
            raise StorageError(f"file ends {part.size - self._at} bytes before the slice that is being sent")
        self._outlet.used(sent)
        self._advance(sent, part.size)
        self._on_progress()
        return sent

    def _advance(self, count: int, size: int) -> None:
        self._at += count
        self.taken_bytes += count
        if self._at >= size:
            self._at = self._resident_to = 0
            self._parts.popleft()

    def _watch(self) -> bool:
        """Wait until the socket takes more; return False if the transport is to wait, with the next piece."""
        self._refused()
        if (watched := self._duplicate()) is None:
            self._is_led = False
            self._write_memory()
            return False
        self._loop.add_writer(watched, self._writable)
        return True

    def _duplicate(self) -> socket.socket | None:
        """Return the socket by a descriptor of its own (asyncio does not lend its), if there is one left."""
        if self._watched is None and self._socket is not None:
            try:
                self._watched = self._socket.dup()
            except OSError as e:
                if e.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
        return self._watched


def _ignore(_: Exception | None = None) -> None:
    """Replacement for the callbacks of a closed sender."""


def _size(part: Part) -> int:
    return len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
