"""Deadlines of logins: connections that do not log in in time are closed, oldest first."""

from __future__ import annotations

import asyncio
from typing import Protocol


class LoggingIn(Protocol):
    """A connection without a session."""

    def login_is_late(self) -> None:
        """Close the connection: its time is up."""


class LoginDeadlines:
    """Connections of one listener that log in, in the order in which they began. Owned by the event loop.

    All have the same time, so the first is the next one that is late, and one timer is enough for 10,000.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._deadlines: dict[LoggingIn, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of connections that log in."""
        return len(self._deadlines)

    def begin(self, connection: LoggingIn) -> None:
        """Give `connection` its time from now on."""
        self._deadlines[connection] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check)

    def end(self, connection: LoggingIn) -> None:
        """Forget a connection that has logged in, or has ended."""
        self._deadlines.pop(connection, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        late: list[LoggingIn] = []
        for connection, deadline in self._deadlines.items():
            if deadline > now or len(late) == _MOST_AT_ONCE:
                self._timer = self._loop.call_at(max(deadline, now), self._check)
                break
            late.append(connection)
        for connection in late:
            del self._deadlines[connection]
            connection.login_is_late()


_MOST_AT_ONCE = 100
"""Connections that are closed in one turn of the loop."""
