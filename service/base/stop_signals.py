"""Signals that stop a process in order, and those that must not end it.

SIGHUP stops like SIGTERM, as it does in a JVM: a closed terminal is no reason to leave logs unclean. Where
it is ignored from the start (`nohup`), it stays so. SIGUSR1 and SIGUSR2 have no use here; by default the
kernel would end the process as SIGKILL does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
UNUSED: Final = (signal.SIGUSR1, signal.SIGUSR2)

Receiver = Callable[[signal.Signals], None]


def receive_stops(receiver: Receiver) -> None:
    """Call `receiver` with each stopping signal from now on. For the main thread.

    It interrupts the main thread at any point, even at the end of the interpreter.
    """
    _receive(_heeded(), receiver)


def receive_unused(receiver: Receiver) -> None:
    """Call `receiver` with each signal of `UNUSED` from now on. For the main thread."""
    _receive(UNUSED, receiver)


def ignore_unused() -> None:
    """Let the signals of `UNUSED` change nothing."""
    for number in UNUSED:
        signal.signal(number, signal.SIG_IGN)


def ignore_stops() -> None:
    """Let further stopping signals change nothing: the process is ending, with an exit code of its own."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stops_received(receiver: Receiver) -> Iterator[None]:
    """Call `receiver` with each stopping signal while the body runs; then restore the handlers."""
    with handlers_given_back():
        receive_stops(receiver)
        yield


@contextmanager
def handlers_given_back() -> Iterator[None]:
    """Restore the handlers of stopping signals that the body replaces."""
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> Iterable[signal.Signals]:
    """Return the stopping signals without a SIGHUP that `nohup` has turned off."""
    is_off = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(one for one in STOPPING if not (is_off and one is signal.SIGHUP))


def _receive(numbers: Iterable[signal.Signals], receiver: Receiver) -> None:
    def on_signal(number: int, _: FrameType | None) -> None:
        receiver(signal.Signals(number))

    for number in numbers:
        signal.signal(number, on_signal)
