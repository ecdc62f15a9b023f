"""Decoder of keys and values by schemas: a process of its own that is ended when it takes too long."""

from __future__ import annotations

import base64
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from service.base.clock import Clock
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.threads import Threads
from service.console.web.rows import Decoded
from service.console.web.schemas.settings import DecodeSettings

_log = logging.getLogger(__name__)

FIRST_MS: Final = 8_000
"""Time for the first value of a process, which has to load its libraries."""
VALUE_MS: Final = 3_000
"""Time for each further value, a question to the registry included."""
PAGE_MS: Final = 6_000
"""Time for all values of a page after the first."""
BLAMED_MS: Final = 300_000
"""Time for which a schema that ended a process is not tried again."""
MOST_BLAMED: Final = 1_000
MOST_VALUE: Final = 1 << 20
MOST_PAGE: Final = 8 << 20
SCHEMA_LOG_S: Final = 60.0
"""Time between two lines about schemas that cannot be had"""
_MOST_LINE: Final = 1 << 20
_PIECE: Final = 64 << 10


class EncodedValue(NamedTuple):
    """A key or value (`part`) of a topic."""

    topic: str
    part: str
    data: bytes

    @property
    def schema(self) -> tuple[str, str, bytes]:
        """Return the topic and the possible id, which decide on the schema."""
        return self.topic, self.part, self.data[:5]


class ValueDecoder:
    """Decoder for all pages of a console, one page at a time. Blocking; thread-safe."""

    def __init__(self, settings: DecodeSettings, clock: Clock, threads: Threads) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threads.lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._is_new = True
        self._schema_log = RateLimitedLog(
            _log, burst=1, interval_s=SCHEMA_LOG_S, now=lambda: clock.monotonic_ms() / 1000
        )
        self._blamed: dict[tuple[str, str, bytes], int] = {}

    def close(self) -> None:
        """End the process, also while it decodes: a page that waits for it gets reasons instead."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def decode(self, values: Sequence[EncodedValue]) -> list[Decoded | None]:
        """Return each value by its schema; None for one that has none."""
        if not self._settings.is_any:
            return [None] * len(values)
        found: list[Decoded | None] = [None] * len(values)
        wanted: list[int] = []
        size = 0
        with self._lock:
            now = self._clock.monotonic_ms()
            for at, one in enumerate(values):
                size += len(one.data)
                if self._blamed.get(one.schema, now) > now:
                    found[at] = Decoded(None, "not decoded: a value of this schema took too long")
                elif len(one.data) > MOST_VALUE or size > MOST_PAGE:
                    found[at] = Decoded(None, "not decoded: too large")
                else:
                    wanted.append(at)
            if wanted:
                self._ask(values, wanted, found)
        return found

    def _ask(
        self, values: Sequence[EncodedValue], wanted: Sequence[int], found: list[Decoded | None]
    ) -> None:
        try:
            process = self._started()
            assert process.stdin is not None
            request = [
                (values[at].topic, values[at].part, base64.b64encode(values[at].data).decode("ascii"))
                for at in wanted
            ]
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError as e:
            self._end()
            for at in wanted:
                found[at] = Decoded(None, f"not decoded: {e}")
            return
        page_ends = self._clock.monotonic_ms() + PAGE_MS + (FIRST_MS if self._is_new else 0)
        for n, at in enumerate(wanted):
            first_ms = FIRST_MS if self._is_new else 0
            deadline = min(self._clock.monotonic_ms() + VALUE_MS + first_ms, page_ends)
            line = self._line(process, deadline)
            if line is None:
                self._blame(values[at])
                self._end()
                for late in wanted[n:]:
                    found[late] = Decoded(
                        None, "not decoded: the decoder took too long, or ran out of memory"
                    )
                return
            self._is_new = False
            answer = json.loads(line)
            if len(answer) > 2:
                self._schema_log.warning(
                    "schemas: %s; values of topic %s are shown as bytes",
                    printable(answer[1]),
                    printable(values[at].topic),
                )
            found[at] = Decoded(answer[0], answer[1]) if answer else None

    def _blame(self, one: EncodedValue) -> None:
        self._blamed.pop(one.schema, None)
        self._blamed[one.schema] = self._clock.monotonic_ms() + BLAMED_MS
        if len(self._blamed) > MOST_BLAMED:
            del self._blamed[next(iter(self._blamed))]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.console.web.schemas.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._is_new, self._buffer = True, b""
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._settings.as_json()).encode() + b"\n")
        return self._process

    def _line(self, process: subprocess.Popen[bytes], deadline: int) -> bytes | None:
        """Read one answer; None if the process has ended, or not answered until then."""
        assert process.stdout is not None
        while b"\n" not in self._buffer:
            left_ms = deadline - self._clock.monotonic_ms()
            if left_ms <= 0 or len(self._buffer) > _MOST_LINE:
                return None
            if select.select([process.stdout], [], [], left_ms / 1000)[0]:
                piece = os.read(process.stdout.fileno(), _PIECE)
                if not piece:
                    return None
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was not written yet is for nobody
