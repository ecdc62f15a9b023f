"""Regular expressions for names, in RE2 as in Kafka: matched in time linear in the name. [P]

RE2 is imported on first use, as most nodes never need it.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError

_MOST_MEMORY: Final = 1 << 20
"""Memory limit of RE2 for one expression; an expression that needs more is rejected."""
MOST_INSTRUCTIONS: Final = 4000
"""Longest program of an expression; a match may take as many steps for each character."""
_STEPS_AT_ONCE: Final = 1_000_000
"""Steps of a match on the loop: some milliseconds. No topic's name takes more."""


def compile_name_pattern(pattern: str, what: str) -> Any:
    """Compile a client's expression. Raises `RequestError` INVALID_REGULAR_EXPRESSION, which calls it
    `what`."""
    try:
        return compile_pattern(pattern)
    except ValueError as e:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"{what} `{pattern}` is not a valid regular expression: {e}.",
        ) from None


def compile_pattern(pattern: str) -> Any:
    """Compile the expression. Raises `ValueError` with RE2's reason."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as e:
        reason = e.args[0].decode("utf-8", "replace") if isinstance(e.args[0], bytes) else str(e)
        raise ValueError(reason) from None
    if compiled.programsize > MOST_INSTRUCTIONS:
        raise ValueError("pattern too large")
    return compiled


def may_take_long(compiled: Any, name: str) -> bool:
    """Return whether the match belongs on a thread: RE2 releases the GIL."""
    return bool(compiled.programsize * len(name) > _STEPS_AT_ONCE)
