"""Signals that end a command in order: its own code tells what is done, and cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.base.stop_signals import stops_received


class Stopped(KeyboardInterrupt):
    """Signal that stops a command. `exit_code`: as a shell tells it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextmanager
def stops_raised() -> Iterator[None]:
    """Raise `Stopped` in the main thread for SIGINT, SIGTERM and SIGHUP while the body runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are another one's
        return
    with stops_received(_raise):
        yield


def _raise(number: signal.Signals) -> None:
    raise Stopped(number)
