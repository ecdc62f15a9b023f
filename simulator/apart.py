"""Runs a call in a forked process of its own, so that its side effects end with it.

A child that hangs is ended, too, and prints its stack to stderr: deadlines in virtual time do not bound a
call that never returns.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

HANGS_S: Final = 900.0
"""No history takes a tenth of it."""
_STDERR: Final = 2


def apart(call: Callable[[], T]) -> T:
    """Return the result of `call` in a child process, without the garbage collector.

    Raises `RuntimeError` where `call` raises or the child dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            gc.disable()
            faulthandler.dump_traceback_later(HANGS_S, exit=True, file=_STDERR)
            try:
                answer: object = (True, call())
            except BaseException:
                answer = (False, traceback.format_exc())
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        raise RuntimeError("the child process died, or hung: stderr says more")
    done, value = pickle.loads(data)
    if not done:
        raise RuntimeError(f"the child process failed:\n{value}")
    result: T = value
    return result
