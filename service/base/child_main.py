"""Main program of a node's child process: runs the calls of `ChildProcess`, one after the other."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from service.base.child_process import CallFailure, CallMessage, CallResult, ChildEnded, FrameChannel
from service.base.stop_signals import ignore_unused

_OOM_SCORE: Final = "500"
"""Makes the kernel kill the child before the node where memory is short."""


def main() -> int:
    """Run calls until the node has gone, or wants none any more."""
    channel = FrameChannel(socket.socket(fileno=int(sys.argv[1])))
    _give_way(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_unused()

    def send(content: Any, *, wants_reply: bool = False) -> Any:
        channel.send(CallMessage(content, wants_reply))
        return channel.receive() if wants_reply else None

    try:
        while True:
            work, args = channel.receive()
            try:
                frame: CallResult | CallFailure = CallResult(work(*args, send))
            except Exception as e:  # also where the node has gone: then `send` says so
                frame = _failed(e)
            channel.send(frame)
            del work, args, frame  # an idle child keeps nothing alive
    except (EOFError, ConnectionError):
        return 0


def _failed(error: Exception) -> CallFailure:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, MemoryError):  # of this process: it is no defect of the node
        return CallFailure(ChildEnded, ("the process for background work has no memory",), {}, trace)
    found = CallFailure(type(error), error.args, dict(error.__dict__), trace)
    try:
        pickle.dumps(found)
    except Exception as e:  # a part of it cannot be sent
        return CallFailure(RuntimeError, (f"{error!r} ({e})",), {}, trace)
    return found


def _give_way(nice: int) -> None:
    """Let the node and others have the processor first, and memory. A sandbox may refuse either, as systemd
    does by ``SystemCallFilter=~@resources``, and not every system has the second."""
    try:
        os.nice(nice)
    except OSError as e:
        print(f"the process for background work keeps its priority: {e}", file=sys.stderr)
    try:
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    except OSError as e:
        print(f"the process for background work keeps its rank where memory is short: {e}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
