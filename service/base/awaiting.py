"""Description of the place where a suspended task waits, for logs of waits that take too long. [P]"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_PACKAGE: Final = Path(__file__).parents[1]
_DEPTH: Final = 4
"""Number of functions in the description, counted from the innermost."""


def waits_in(awaitable: Any) -> str:
    """Return the call chain of a suspended coroutine, innermost function first.

    >>> async def waits() -> None: ...
    >>> coroutine = waits()
    >>> waits_in(coroutine).partition(" (")[0]
    'waits'
    >>> coroutine.close()
    """
    found: list[str] = []
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is None:
            break
        path = Path(frame.f_code.co_filename)
        name = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name
        found.append(f"{frame.f_code.co_qualname} ({name}:{frame.f_lineno})")
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return ", called by ".join(reversed(found[-_DEPTH:])) or "an unknown awaitable"
