"""A copy over loopback with no server in it: `python -m bench.bare_copy TARGET FILE …`

What is sent by `sendfile` is received by another thread and written, a megabyte at a time: the least that
catching up asks of a machine. What others feel beside it is the floor of what they feel beside a follower.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_PIECE = 1 << 20


def _send(files: Sequence[Path], to: socket.socket) -> None:
    with to:
        for path in files:
            with path.open("rb") as file:
                position, size = 0, path.stat().st_size
                while position < size:
                    position += os.sendfile(
                        to.fileno(), file.fileno(), position, min(_PIECE, size - position)
                    )


def copy(target: Path, files: Sequence[Path]) -> tuple[int, float]:
    """(bytes, seconds)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = socket.create_connection(server.getsockname())
        drain, _ = server.accept()
    buffer = memoryview(bytearray(_PIECE))
    began, size = time.monotonic(), 0
    sending = threading.Thread(target=_send, args=(files, source))
    sending.start()
    with drain, target.open("wb", buffering=0) as file:
        while count := drain.recv_into(buffer, _PIECE, socket.MSG_WAITALL):
            file.write(buffer[:count])
            size += count
    sending.join()
    return size, time.monotonic() - began


def main() -> int:
    target, *files = map(Path, sys.argv[1:])
    size, took = copy(target, files)
    print(size, took, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
