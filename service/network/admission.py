"""Limits of open connections, of a node and of each listener, and the queue of connections beyond them. [P]

At ``max.connections`` the listeners stop accepting, at that of a listener this one, and the kernel queues
further connections. Connections accepted at the same moment wait here, unread, in order of arrival. The end
of a connection admits the first of them that may; once none waits and there is room, the listeners accept
again.

>>> admission = Admission(lambda: 1)
>>> admission.enter("L", lambda: print("its turn")), admission.enter("L", lambda: print("its turn"))
(True, False)
>>> admission.leave("L")
its turn
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Acceptor(Protocol):
    """A listener that can stop accepting connections for a while."""

    @property
    def listener(self) -> str: ...
    def shut(self) -> None: ...
    def open(self) -> None: ...


def _any_number(listener: str) -> int:
    return 1 << 31


class Admission:
    """Count of the connections of all listeners. Owned by the event loop.

    The limits may change at any time; `reconsider` applies them to those who wait.
    """

    def __init__(
        self, most: Callable[[], int], most_of: Callable[[str], int] = _any_number, protected: str = ""
    ) -> None:
        """`most_of`: limit of a listener. `protected`: the listener that only its own limit concerns."""
        self._most = most
        self._most_of = most_of
        self._protected = protected
        self.count = 0
        """number of admitted connections"""
        self._counts: dict[str, int] = {}
        self._doors: dict[Acceptor, bool] = {}
        """whether each one is shut"""
        self._waiting: dict[Callable[[], None], str] = {}
        """listeners of those who wait"""

    def watch(self, door: Acceptor) -> None:
        """Stop and resume accepting on `door` from now on."""
        self._doors[door] = False

    def _has_room(self, listener: str) -> bool:
        if self._counts.get(listener, 0) >= self._most_of(listener):
            return False
        return listener == self._protected or self.count < self._most()

    def enter(self, listener: str, admit: Callable[[], None]) -> bool:
        """Return whether a new connection may begin; if not, `admit` is called later, in its turn."""
        if not self._has_room(listener):
            self._waiting[admit] = listener
            return False
        self._add(listener)
        self._turn_doors()
        return True

    def _add(self, listener: str) -> None:
        self.count += 1
        self._counts[listener] = self._counts.get(listener, 0) + 1

    def _turn_doors(self) -> None:
        """Shut the doors behind which there is no room, and open the others."""
        for door, is_shut in self._doors.items():
            is_full = not self._has_room(door.listener)
            if is_full is not is_shut:
                self._doors[door] = is_full
                if is_full:
                    door.shut()
                else:
                    door.open()

    def give_up(self, admit: Callable[[], None]) -> None:
        """Forget a connection that ended while it waited."""
        self._waiting.pop(admit, None)

    def leave(self, listener: str) -> None:
        """Note the end of an admitted connection; admit the next one."""
        self.count -= 1
        self._counts[listener] -= 1
        self.reconsider()

    def reconsider(self) -> None:
        """Admit who may be by now."""
        for admit, listener in tuple(self._waiting.items()) if self._waiting else ():
            if self._has_room(listener):
                del self._waiting[admit]
                self._add(listener)
                admit()
        self._turn_doors()
