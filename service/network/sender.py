"""Sends the parts of one response: memory through the transport, file slices with ``sendfile``.

Order on the wire is kept by one rule: a part goes out only when the transport's own buffer is empty, and
while a file is being sent nothing else is written. The transport's limits are zero for that: any backlog
pauses us, its end resumes us. Memory is handed over in pieces, so a slow reader costs at most one piece
besides the response itself.

What stands in memory before and behind a slice goes with its bytes: by itself it would be a packet that wakes
the reader for a few bytes. The head takes the first bytes of the slice with it, read and joined; the tail is
kept with the last ones (TCP_CORK). A reader on the same machine that is woken with 64 KiB to take stays
behind the sender; one that has less takes each packet as it comes, sleeps, and is woken for the next.
Microseconds of CPU for 1 MB, the sender's, while readers stay behind and while they do not:

============================= ======  ====
head, slice and tail          behind  not
============================= ======  ====
one after the other           113     300
corked                        143     285
head with 64 KiB, then corked 126     180
============================= ======  ====

``sendfile`` is called directly, and waits through a duplicate of the socket's descriptor, because
asyncio does not let a transport's descriptor be watched: no task, no ``fstat`` and no switching of reader
interest for each slice. Small slices are read and joined with the head in front of them. Microseconds per
response of 8 slices on loopback:

===============  =====  =====  =====  ======  =======
each slice       4 KiB  32 KiB 64 KiB 256 KiB 1 MiB
read and joined  22     49     92     321     1127
os.sendfile      75     74     97     283     1046
loop.sendfile    228    252    268    453     1246
===============  =====  =====  =====  ======  =======

Before bytes of a file are sent it is asked whether they are in the page cache; if not, a thread reads them
first (`ahead.py`), and others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from service.base.errors import FirnError, StorageError
from service.base.turns import TurnTimes
from service.base.types import Buffer
from service.network.ahead import AHEAD_BYTES, ReadAhead, ReadFile

SMALL_SLICE_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
LEAD_BYTES = 64 << 10
"""So much of the first large slice of a response goes out from memory, with the head: `malloc` maps what is
twice that anew each time."""
TURN_BYTES = 2 << 20
"""So much of what is large is sent in one turn of the loop, to all readers together: about 2 ms."""
SHARED_TURN_BYTES = 256 << 10
"""So much while there are others who ask for little, and would wait for it: a quarter of a millisecond. Four
readers of the archive were not slower by the turns that it takes more; with the whole of `TURN_BYTES` the
median of who asked for little beside them was twice as long.
"""
WIDE_SLICES = 32
"""A response of more parts than twice as many is sent within `TURN_BYTES`, however small they are."""
SLICE_BYTES = 8 << 10
"""So many bytes a slice that is read counts for at least: what the call costs."""
SHARED_S = 0.05
"""So long after a small answer there is somebody who asks for little."""
_CORK: int | None = getattr(socket, "TCP_CORK", None)


class PeerLost(FirnError):
    """The socket is gone while something was being sent; nobody's fault."""


class OpenFile(ReadFile, Protocol):
    """A file that stays open while anyone holds it."""

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        """As `Disk.sendfile`."""


class Slice(Protocol):
    """A range of a file."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = Buffer | Slice


class Outlet:
    """What all connections send of large parts in one turn of the loop. Who finds no room waits in a row."""

    __slots__ = (
        "_began", "_is_due", "_loop", "_room", "_shared_until", "_turns", "_waiting", "ahead", "has_small",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turns: TurnTimes, ahead: ReadAhead | None = None
    ) -> None:
        """`turns` tells one turn from the next. Where nobody measures them, room comes again when somebody
        has waited for it. `ahead`: without it the loop itself reads from the device.
        """
        self.ahead = ahead
        self._loop = loop
        self._turns = turns
        self._waiting: deque[Sender] = deque()
        self._is_due = False
        self._began = turns.began
        self._shared_until = 0.0
        self.has_small = False
        """A small answer went out since this was looked at."""
        self._room = TURN_BYTES

    @property
    def room(self) -> int:
        """How many bytes may still be sent in this turn."""
        began = self._turns.began
        if began != self._began:
            self._began = began
            self._room = self._whole()
        return self._room

    def _whole(self) -> int:
        """The room of a turn: little while somebody else would wait for what is sent in it."""
        now = self._loop.time()
        if self.has_small:
            self.has_small = False
            self._shared_until = now + SHARED_S
        return SHARED_TURN_BYTES if now < self._shared_until else TURN_BYTES

    def used(self, count: int) -> None:
        """So much of `room` is gone. The loop is not asked for another turn: it would have nothing to do."""
        self._room -= count

    def wait(self, sender: Sender) -> None:
        """There is no room: `sender` goes on in a later turn."""
        self._waiting.append(sender)
        self._ask()

    def _ask(self) -> None:
        if not self._is_due:
            self._is_due = True
            # What is due comes last in a turn of asyncio's loop, behind what peers have sent meanwhile; with
            # `call_soon` it would come first.
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
                self._ask()


class Sender:
    """Output of one connection. `on_sent` is called when everything given to `send` is out, unless `send`
    said so.
    """

    __slots__ = (
        "_at", "_corked", "_in_row", "_is_led", "_is_reading", "_is_tcp", "_is_wide", "_loop", "_near_to",
        "_on_progress", "_on_sent", "_outlet", "_parts", "_paused", "_refused_at", "_small_bytes", "_socket",
        "_transport", "_watched", "taken_bytes",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        on_sent: Callable[[Exception | None], None],
        on_progress: Callable[[], None],
        outlet: Outlet,
    ) -> None:
        self._loop = loop
        self._outlet = outlet
        self._in_row = False
        self._transport = transport
        self._on_sent = on_sent
        self._on_progress = on_progress
        self._parts: deque[Part] = deque()
        self._at = 0
        self._near_to = 0
        """so far the slice that is next is in the page cache"""
        self._is_reading = False
        """A thread reads what is next."""
        self.taken_bytes = 0
        """bytes that the kernel or the transport has taken so far"""
        self._refused_at = -1
        """`taken_bytes` when it first had no room for more of this response; -1: it always had"""
        self._paused = False
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._is_tcp = self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6)
        self._corked = False
        self._is_wide = False
        """This response has so many parts that they are counted like what is large."""
        self._is_led = False
        """The beginning of this response's first large slice is out."""
        # Without a socket there is nothing for `sendfile`: every slice is read and handed over.
        self._small_bytes = SMALL_SLICE_BYTES if self._socket is not None else sys.maxsize
        self._watched: socket.socket | None = None
        transport.set_write_buffer_limits(high=0)

    @property
    def busy(self) -> bool:
        """Whether something is still to be sent."""
        return self._paused or bool(self._parts)

    def send(self, parts: Sequence[Part]) -> bool:
        """Start sending; True when all of it is already with the kernel. Raises `StorageError` when a file
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
        """The transport has a backlog."""
        self._paused = True
        self._refused()

    def resumed(self) -> None:
        """The transport's backlog is gone."""
        self._paused = False
        self._resume()

    def close(self) -> None:
        """Let go of files and descriptors; the transport is closed or about to be."""
        self._parts.clear()
        # Whom it told holds this sender: nobody else is to look for that.
        self._on_sent = self._on_progress = _nobody
        watched, self._watched = self._watched, None
        if watched is not None:
            self._loop.remove_writer(watched)
            watched.close()

    @property
    def moved_bytes(self) -> int | None:
        """What the peer has taken of the response, without what filled the kernel's buffer; None: it was
        never full."""
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
        """There is room again in the outlet."""
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
            if is_small or isinstance(part, (bytes, bytearray, memoryview)) or self._socket is None:
                self._write_memory()
            elif self._is_near(part) and self._send_slice(part) == 0:
                self._watch()
                return False
        self._is_led = self._is_wide = False
        if self._corked:
            self._cork(False)
        return not self._paused

    def _leads(self) -> bool:
        """Whether what is next is the head of a large slice, and takes the first of its bytes with it."""
        if self._is_led or len(self._parts) == 1:
            return False
        then = self._parts[1]
        return not isinstance(then, (bytes, bytearray, memoryview)) and then.size > self._small_bytes

    def _write_memory(self) -> None:
        """Write what is next in one piece: memory, its small neighbours, and once in a response the beginning
        of a large slice behind them. Nothing where the first of it has to be read by a thread.
        """
        piece: list[Buffer] = []
        room, slices = PIECE_BYTES, 0
        while self._parts and room > 0 and slices < WIDE_SLICES:
            part = self._parts[0]
            if isinstance(part, (bytes, bytearray, memoryview)):
                data: Buffer = part
                if self._at or len(part) > room:
                    data = memoryview(part)[self._at : self._at + room]
                size = len(part)
            else:
                size = part.size
                is_lead = size - self._at > self._small_bytes
                if is_lead and (self._is_led or self._outlet.room <= 0):
                    break
                found = self._read_now(part, min(LEAD_BYTES, room) if is_lead else room)
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

    def _cork(self, on: bool) -> None:
        """Have the kernel keep a packet that is not full until more comes, or send what it kept."""
        if _CORK is None or not self._is_tcp:
            return
        assert self._socket is not None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, _CORK, on)
        except OSError as e:
            raise PeerLost(str(e)) from e
        self._corked = on

    # -- what the page cache lacks

    def _read_now(self, part: Slice, most: int) -> Buffer | None:
        """The first bytes of what is next, at most so many; None where they have to be waited for."""
        position, wanted = part.position + self._at, min(part.size - self._at, most)
        if self._outlet.ahead is not None:
            if self._at >= self._near_to:
                return part.file.pread_nowait(wanted, position)
            wanted = min(wanted, self._near_to - self._at)
        data = part.file.pread(wanted, position)
        if len(data) != wanted:
            raise StorageError(f"file ends {wanted - len(data)} bytes before the slice that is being sent")
        return data

    def _is_near(self, part: Slice) -> bool:
        """Whether what is next need not be waited for; if not, a thread begins to read it."""
        if self._outlet.ahead is None:
            self._near_to = part.size
        if self._at < self._near_to:
            return True
        size = min(part.size - self._at, AHEAD_BYTES)
        if part.file.is_resident(size, part.position + self._at):
            self._near_to = self._at + size
            return True
        self._read_ahead(part)
        return False

    def _read_ahead(self, part: Slice) -> None:
        """Have a thread read what is next; it is sent then, even if the pages are gone again. Meanwhile it is
        not the peer that is waited for."""
        assert self._outlet.ahead is not None
        size = min(part.size - self._at, AHEAD_BYTES)
        self._near_to = self._at + size
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

    def _send_slice(self, part: Slice) -> int:
        assert self._socket is not None
        try:
            size = min(part.size, self._near_to) - self._at
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
            self._at = self._near_to = 0
            self._parts.popleft()

    def _watch(self) -> None:
        assert self._socket is not None
        self._refused()
        if self._watched is None:
            self._watched = self._socket.dup()
        self._loop.add_writer(self._watched, self._writable)


def _nobody(_: Exception | None = None) -> None:
    """Nobody is told any more."""


def _size(part: Part) -> int:
    return len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
