"""A process of a simulated machine: what it schedules runs while it lives, and waits while it is stopped.

Once it is killed nothing of it is ever heard of again.

Callbacks, tasks and threads belong to the process in whose context they were made (`contextvars`), so that a
node needs to know nothing of it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from enum import Enum
from typing import ClassVar, ParamSpec, TypeVar

from service.base.turn_queues import NODES

P = ParamSpec("P")
T = TypeVar("T")


class Life(Enum):
    """State of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    """by SIGSTOP: nothing of it runs until SIGCONT"""
    DEAD = "dead"


class Process:
    """One process. `run` calls something as it, `kill` ends it between two of its steps."""

    changes: ClassVar[int] = 0
    """how many have been made, and have died"""

    def __init__(self, name: str) -> None:
        Process.changes += 1
        self.name = name
        self.life = Life.RUNNING
        self.rate = 1.0
        """how fast its clock runs"""
        self.has_run = True
        """whether something of it ran since who looks at it has last taken this back"""
        self.held: list[Callable[[], None]] = []
        """what came due while it was stopped, in order"""
        self.at_death: list[Callable[[], None]] = []
        """what the machine does when the process is gone: locks and connections end"""
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self)
        self._context.run(NODES.set, {})

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` as this process; callbacks that it schedules belong to it."""
        self.has_run = True
        return self._context.copy().run(call, *args, **kwargs)

    def context(self) -> contextvars.Context:
        """Return a context that runs code as this process."""
        return self._context.copy()

    def stop(self) -> None:
        """SIGSTOP."""
        if self.life is Life.RUNNING:
            self.life = Life.STOPPED

    def resume(self) -> None:
        """SIGCONT."""
        if self.life is Life.STOPPED:
            self.life = Life.RUNNING
            held, self.held = self.held, []
            for put_back in held:
                put_back()

    def kill(self) -> None:
        """SIGKILL: no step of it runs any more, no `finally` either."""
        if self.life is not Life.DEAD:
            self.life = Life.DEAD
            Process.changes += 1
            self.held.clear()
            for end in self.at_death:
                end()
            self.at_death.clear()


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
