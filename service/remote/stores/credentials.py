"""Credentials that are kept until they end, and fetched anew when a store says that they have."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final, Protocol

from service.base.clock import Clock
from service.base.errors import FirnError
from service.base.threads import Threads

if TYPE_CHECKING:
    from obstore.store import S3Credential

EARLY_MS: Final = 60_000
"""So long before they end newer ones are asked for."""
AGAIN_MS: Final = 1_000
"""Not more often than that, however many ask, unless it brings something new."""


class CredentialSource(Protocol):
    """Where credentials come from. Calls block, one thread makes them. `name` is for messages."""

    name: str
    is_fixed: bool
    """Nothing but a change of the process itself will bring others."""

    def fetch(self, *, anew: bool) -> S3Credential:
        """Credentials that are valid now; with `anew` not from any cache of the source's own.

        Raises `StoreUnavailable` (ask again), `StoreRefused` or `ConfigError`.
        """


class RenewedCredentials:
    """obstore's credential provider over a source. Thread-safe: one thread fetches, others wait for it."""

    def __init__(self, source: CredentialSource, clock: Clock, threads: Threads) -> None:
        self.source = source
        self._clock = clock
        self._lock = threads.lock()
        self._held: S3Credential | None = None
        self._ends_ms: int | None = None
        self._asked_ms: int | None = None
        self._failure: FirnError | None = None

    def __call__(self) -> S3Credential:
        """What to sign with now. Raises what the source does, unless what is held is still good."""
        held = self._held
        if held is not None and not self._ends_within(EARLY_MS):
            return held
        with self._lock:
            if self._held is None or self._ends_within(EARLY_MS):
                self._fetch(anew=False)
            return self._good()

    def renew(self, refused: S3Credential | None) -> bool:
        """Fetch others than those that a store has refused; False where the source gives the same again.

        Raises what the source does.
        """
        with self._lock:
            if refused is None or self._held is None or _is_same(self._held, refused):
                self._fetch(anew=True)
            if self._failure is not None:
                raise self._failure
            held = self._good()
        return refused is None or not _is_same(held, refused)

    def _fetch(self, *, anew: bool) -> None:
        """One question to the source; failures, and the same keys again, do for who comes right after."""
        now = self._clock.monotonic_ms()
        if self._asked_ms is not None and now - self._asked_ms < AGAIN_MS:
            return
        try:
            found = self.source.fetch(anew=anew)
        except FirnError as e:
            self._failure, self._asked_ms = e, self._clock.monotonic_ms()
        else:
            is_news = self._held is None or not _is_same(found, self._held)
            self._asked_ms = None if is_news else self._clock.monotonic_ms()
            ends = found["expires_at"]
            # obstore takes no other time zone.
            self._held = {**found, "expires_at": ends.astimezone(UTC) if ends is not None else None}
            self._ends_ms = int(ends.timestamp() * 1000) if ends is not None else None
            self._failure = None

    def _good(self) -> S3Credential:
        if self._held is not None and not (self._failure is not None and self._ends_within(0)):
            return self._held
        assert self._failure is not None
        raise self._failure

    def _ends_within(self, ms: int) -> bool:
        return self._ends_ms is not None and self._ends_ms - self._clock.now_ms() <= ms


def _is_same(one: S3Credential, other: S3Credential) -> bool:
    """Whether both sign alike, whenever they are said to end."""
    return all(one.get(name) == other.get(name) for name in ("access_key_id", "secret_access_key", "token"))
