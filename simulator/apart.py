"""Something done in a process of its own, forked for it: what it leaves behind ends with it."""

from __future__ import annotations

import gc
import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def apart(call: Callable[[], T]) -> T:
    """What `call` answers, in a child process; `RuntimeError` where it raises. The collector does not run."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            gc.disable()
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
        raise RuntimeError("the child process died")
    done, value = pickle.loads(data)
    if not done:
        raise RuntimeError(f"the child process failed:\n{value}")
    result: T = value
    return result
