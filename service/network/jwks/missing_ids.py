"""Ids of keys that tokens named and no key set had: when the issuer is asked for them. [P]

Source: Kafka ``RefreshingHttpsJwks.maybeExpediteRefresh``. A flood of made-up ids is bounded here, besides:
all together ask once in `BETWEEN_S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_REMEMBERED: Final = 16
AGAIN_S: Final = 60.0
BETWEEN_S: Final = 10.0


class MissingIds:
    """The last ids that were missing."""

    def __init__(self) -> None:
        self._next_s: dict[str | None, float] = {}
        self._asked_s = -BETWEEN_S

    def ask_at(self, kid: str | None, now_s: float) -> float | None:
        """Return when the issuer is to be asked because of `kid`; None if it was asked within a minute."""
        next_s = self._next_s.pop(kid, None)
        if next_s is not None and now_s < next_s:
            self._next_s[kid] = next_s
            return None
        self._next_s[kid] = now_s + AGAIN_S
        if len(self._next_s) > MOST_REMEMBERED:
            del self._next_s[next(iter(self._next_s))]
        return max(now_s, self._asked_s + BETWEEN_S)

    def asked(self, now_s: float) -> None:
        """Note that the issuer is asked now."""
        self._asked_s = now_s

    def found(self, kids: Iterable[str]) -> None:
        """Forget these ids: there are keys for them."""
        for kid in kids:
            self._next_s.pop(kid, None)

    def __len__(self) -> int:
        return len(self._next_s)
