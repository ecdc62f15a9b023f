"""Errors on their way to who waits for an answer, without reference cycles. [P]

An error has the frames that it was raised through, a frame its variables, and a failed future its error.
Where a frame has the future as well, all of them, with the request's bytes, stay until the garbage collector
traverses the whole heap, which a node does seldom.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from service.base.errors import RequestError
from service.coordinator.ports import ResponseSink

R = TypeVar("R")


def refuse(sink: ResponseSink, error: RequestError) -> None:
    """Send `error` to who waits, without its traceback. Nobody may raise the same error again."""
    sink.set_exception(error.with_traceback(None))


async def settled(answer: R | Awaitable[R]) -> R:
    """Return an answer of `TopicCoordinator.write`, once it is there. Raises `RequestError`.

    A caller that awaited a variable of its own would be in the error's frames with it.
    """
    try:
        return await answer if isinstance(answer, Awaitable) else answer
    finally:
        del answer
