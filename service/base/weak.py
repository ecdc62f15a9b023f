"""Weak callbacks: what a part calls on its owner without keeping the owner alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec
from weakref import WeakMethod

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls `method`, a bound method, while its object is alive, and does nothing
    later.

    A part that kept the bound method itself would form a cycle with its owner, which only the garbage
    collector frees.
    """
    reference = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        found = reference()
        if found is not None:
            found(*args, **kwargs)

    return call
