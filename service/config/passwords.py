"""Secret value of a configuration key, which nothing prints. [P]"""

from __future__ import annotations

from typing import Final, NoReturn

HIDDEN: Final = "[hidden]"
"""Text in place of a password (Kafka `Password.HIDDEN`)."""


class Password:
    """Secret text. ``str``, ``repr`` and so logs and tracebacks show `HIDDEN`; only `reveal` gives it.

    >>> Password("geheim")
    [hidden]
    >>> Password("geheim").reveal()
    'geheim'
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a password is not pickled")
