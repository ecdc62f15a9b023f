"""How many connections are open over all listeners of a node, and which of them wait for their turn. [P]

When ``max.connections`` are open the doors are shut: nobody is accepted, and the kernel keeps further
connections in its queues. Those that were accepted in the same moment wait here, unread, in the order they
came. Whoever leaves lets the first of them in; once nobody waits and there is room, the doors open again.

>>> admission = Admission(1)
>>> admission.enter(lambda: print("its turn")), admission.enter(lambda: print("its turn"))
(True, False)
>>> admission.leave()
its turn
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Door(Protocol):
    """A listener that can stop accepting connections for a while."""

    def shut(self) -> None: ...
    def open(self) -> None: ...


class Admission:
    """Counts the connections of all doors. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        """connections that are let in"""
        self._doors: list[Door] = []
        self._waiting: dict[Callable[[], None], None] = {}
        self._shut = False

    def watch(self, door: Door) -> None:
        """Shut and open `door` from now on."""
        self._doors.append(door)

    def enter(self, admit: Callable[[], None]) -> bool:
        """Whether a new connection may begin; if not, `admit` is called when its turn has come."""
        if self.count >= self.most:
            self._waiting[admit] = None
            return False
        self.count += 1
        if self.count >= self.most and not self._shut:
            self._shut = True
            for door in self._doors:
                door.shut()
        return True

    def give_up(self, admit: Callable[[], None]) -> None:
        """A connection has gone while it waited."""
        self._waiting.pop(admit, None)

    def leave(self) -> None:
        """A connection that was let in has ended."""
        self.count -= 1
        if self._waiting:
            admit = next(iter(self._waiting))
            del self._waiting[admit]
            self.count += 1
            admit()
        elif self._shut:
            self._shut = False
            for door in self._doors:
                door.open()
