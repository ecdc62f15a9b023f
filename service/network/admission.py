"""Limit of open connections over all listeners of a node, and the queue of connections beyond it. [P]

At ``max.connections`` the listeners stop accepting, and the kernel queues further connections. Connections
accepted at the same moment wait here, unread, in order of arrival. The end of a connection admits the first
of them; once none waits and there is room, the listeners accept again.

>>> admission = Admission(1)
>>> admission.enter(lambda: print("its turn")), admission.enter(lambda: print("its turn"))
(True, False)
>>> admission.leave()
its turn
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Acceptor(Protocol):
    """A listener that can stop accepting connections for a while."""

    def shut(self) -> None: ...
    def open(self) -> None: ...


class Admission:
    """Count of the connections of all listeners. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        """number of admitted connections"""
        self._doors: list[Acceptor] = []
        self._waiting: dict[Callable[[], None], None] = {}
        self._shut = False

    def watch(self, door: Acceptor) -> None:
        """Stop and resume accepting on `door` from now on."""
        self._doors.append(door)

    def enter(self, admit: Callable[[], None], *, is_protected: bool = False) -> bool:
        """Return whether a new connection may begin; if not, `admit` is called later, in its turn. One of a
        protected listener always may: it counts, but clients do not keep it out."""
        if self.count >= self.most and not is_protected:
            self._waiting[admit] = None
            return False
        self.count += 1
        if self.count >= self.most and not self._shut:
            self._shut = True
            for door in self._doors:
                door.shut()
        return True

    def give_up(self, admit: Callable[[], None]) -> None:
        """Forget a connection that ended while it waited."""
        self._waiting.pop(admit, None)

    def leave(self) -> None:
        """Note the end of an admitted connection; admit the next one."""
        self.count -= 1
        if self.count >= self.most:
            return
        if self._waiting:
            admit = next(iter(self._waiting))
            del self._waiting[admit]
            self.count += 1
            admit()
        elif self._shut:
            self._shut = False
            for door in self._doors:
                door.open()
