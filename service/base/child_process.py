"""Child process of a node for background work, which neither holds the interpreter nor takes the processor.

Threads of a node share one interpreter lock. A thread of low priority that holds the lock and is not run, as
others use the processors, stops the event loop for as long; no priority of threads helps. A process of its
own has a lock of its own, and its priority is that of all its threads, those of libraries included. It stays
in the node's session: Linux compares nice values within a session alone (sched(7), autogroup).

The first call starts the child (`child_main.py`), `end` ends it. Both sides send pickled frames over a pair
of sockets: a function and its arguments go to the child, which may send messages meanwhile and wait for the
replies to some, then its result or error comes. The end of either side's socket ends the other's work.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from service.base.errors import StorageError

CHILD_NICE: Final = 19
"""Leaves the child a sixtieth of each busy processor: its work must not stand still. It holds no lock that
others wait for, so nothing is gained by more. Beside two such processes on two cores a loop's p99 was 0.7 to
1.2 ms, at 10 it was 0.9 to 1.5, at 0 it was 4.4; nobody beside it: 0.6."""
_HEAD: Final = struct.Struct(">I")
_LOOK_S: Final = 0.5
"""Time between two looks at whether the call is cancelled, while the child is silent."""
_END_S: Final = 5.0
"""Time in which a child whose socket was closed ends by itself, and takes back what it began in a store."""


class ChildEnded(StorageError):
    """The child could not be started, or has ended within a call."""


class CallMessage(NamedTuple):
    """Frame of the child: its function sends a message, and may wait for the reply."""

    content: Any
    wants_reply: bool


class CallResult(NamedTuple):
    """Frame of the child: its function has returned."""

    result: Any


class CallFailure(NamedTuple):
    """Frame of the child: its function has raised. An error is sent in parts: few can be pickled."""

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]
    trace: str

    def error(self) -> Exception:
        """Return the error, with the child's trace as a note."""
        error = self.kind.__new__(self.kind, *self.args)
        error.__dict__.update(self.fields)
        error.add_note(f"In the process for background work:\n{self.trace}")
        return error


class SendMessage(Protocol):
    """Sends a message from a child's function to its caller."""

    def __call__(self, content: Any, *, wants_reply: bool = False) -> Any:
        """Return the reply if one is wanted, else None. Raises `OSError` or `EOFError` once the caller has
        gone."""


class FrameChannel:
    """One end of the pair of sockets. For one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, frame: Any, on_silence: Callable[[], None] | None = None) -> None:
        """Send a frame. `on_silence` as in `receive`."""
        data = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
        left = memoryview(_HEAD.pack(len(data)) + data)
        while left:
            self._wait(select.POLLOUT, on_silence)
            left = left[self._end.send(left, 0 if on_silence is None else socket.MSG_DONTWAIT) :]

    def receive(self, on_silence: Callable[[], None] | None = None) -> Any:
        """Return the next frame; `EOFError` once the other side has gone, or sends what is no frame, as after
        another version was installed. `on_silence` is called now and then while nothing moves, even within a
        frame, and ends the wait by what it raises."""
        (size,) = _HEAD.unpack(self._exactly(_HEAD.size, on_silence))
        data = self._exactly(size, on_silence)
        try:
            return pickle.loads(data)
        except Exception as e:
            raise EOFError(f"no frame: {e!r}") from e

    def close(self) -> None:
        self._end.close()

    def _exactly(self, size: int, on_silence: Callable[[], None] | None) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._wait(select.POLLIN, on_silence)
            piece = self._end.recv(size - len(found))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def _wait(self, event: int, on_silence: Callable[[], None] | None) -> None:
        if on_silence is None:
            return
        poll = select.poll()
        poll.register(self._end, event)
        while not poll.poll(_LOOK_S * 1000):
            on_silence()


class ChildProcess:
    """One child process, and the calls that it runs, one at a time. Its methods block."""

    def __init__(self, nice: int = CHILD_NICE) -> None:
        """`nice`: added to the child's nice value."""
        self._nice = nice
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: FrameChannel | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def call(
        self,
        work: Callable[..., Any],
        *args: Any,
        on_message: Callable[[Any], Any],
        on_silence: Callable[[], None],
    ) -> Any:
        """Return ``work(*args, send)``, run by the child; raise what it raises.

        `work` is a function of a module. `on_message` gets its messages, and returns replies; `on_silence` is
        called now and then while there are none. What either raises ends the child, and is raised.
        Raises `ChildEnded` where the child could not be started, or has ended.
        """
        with self._turn:
            channel = self._started()
            try:
                channel.send((work, args), on_silence)
                frame = _last_frame(channel, on_message, on_silence)
            except (EOFError, ConnectionError) as e:
                why = f", {e}" * bool(str(e))
                raise ChildEnded(f"the process for background work has ended: {self._ended()}{why}") from e
            except BaseException:
                self._ended()
                raise
        if isinstance(frame, CallFailure):
            raise frame.error()
        return frame.result

    def end(self) -> None:
        """End the child, if there is one. The next call starts another."""
        with self._turn:
            self._ended()

    def close(self) -> None:
        """End a child that has nothing to do, without waiting for others. A call that is under way and
        cancelled ends its child by itself."""
        if self._turn.acquire(blocking=False):
            try:
                if self._process is not None:
                    self._process.kill()
                self._ended()
            finally:
                self._turn.release()

    def _started(self) -> FrameChannel:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self._ended()
        try:
            ours, its = socket.socketpair()
            with its:
                # -P: the working directory may have a `service` of its own.
                words = [sys.executable, "-P", "-m", "service.base.child_main", its.fileno(), self._nice]
                self._channel = FrameChannel(ours)
                self._process = subprocess.Popen(
                    list(map(str, words)), stdin=subprocess.DEVNULL, pass_fds=(its.fileno(),), process_group=0
                )
        except OSError as e:
            self._ended()
            raise ChildEnded(f"the process for background work cannot be started: {e}") from e
        return self._channel

    def _ended(self) -> str:
        """End the child, and return how it ended."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is None:
            return "there was none"
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return f"signal {-code}" if code < 0 else f"code {code}"


def _last_frame(
    channel: FrameChannel, on_message: Callable[[Any], Any], on_silence: Callable[[], None]
) -> CallResult | CallFailure:
    """Pass messages on until the function has ended; return its last frame."""
    while True:
        frame: CallMessage | CallResult | CallFailure = channel.receive(on_silence)
        if not isinstance(frame, CallMessage):
            return frame
        reply = on_message(frame.content)
        if frame.wants_reply:
            channel.send(reply, on_silence)
