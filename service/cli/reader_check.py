"""Check whether somebody still reads the output, for a command that has nothing to write."""

from __future__ import annotations

import io
import select
from collections.abc import Callable
from typing import Any


def reader_check(out: Any) -> Callable[[], bool]:
    """Return a function that returns False once a pipe's other end, as `head`, is closed."""
    try:
        descriptor = out.fileno()
    except io.UnsupportedOperation:
        return lambda: True
    poller = select.poll()
    poller.register(descriptor, 0)  # only what is always told: an error, or that the other end is gone
    return lambda: not poller.poll(0)
