"""Garbage of a node: what only the collector frees of what was done."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_collector() -> Iterator[Counter[str]]:
    """Do something without the collector, and count then what it would have had to free: objects of the node,
    and frames of its functions, by name."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(name for one in gc.garbage if (name := _name_of(one)).startswith("service."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _name_of(one: Any) -> str:
    if type(one).__name__ == "frame":
        return f"{one.f_globals.get('__name__')}.{one.f_code.co_qualname}"
    return f"{type(one).__module__}.{type(one).__qualname__}"
