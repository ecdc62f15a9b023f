"""Credentials that are kept until they expire, and fetched again when a store says that they have."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final, Protocol

from service.base.clock import Clock
from service.base.errors import FirnError
from service.base.threads import Threads

if TYPE_CHECKING:
    from obstore.store import S3Credential

RENEW_BEFORE_MS: Final = 60_000
"""Time before the expiry at which newer ones are fetched."""
FETCH_INTERVAL_MS: Final = 1_000
"""Shortest interval of fetches, however many callers there are, unless a fetch brings new credentials."""


class CredentialSource(Protocol):
    """Source of credentials. Calls block, one thread makes them. `name` is for messages."""

    name: str
    is_fixed: bool
    """True where only the process itself can change them."""

    def fetch(self, *, fresh: bool) -> S3Credential:
        """Return credentials that are valid now; with `fresh` not from any cache of the source.

        Raises `StoreUnavailable` (try again), `StoreRefused` or `ConfigError`.
        """


class RenewedCredentials:
    """obstore's credential provider over a source. Thread-safe: one thread fetches, others wait for it."""

    def __init__(self, source: CredentialSource, clock: Clock, threads: Threads) -> None:
        self.source = source
        self._clock = clock
        self._lock = threads.lock()
        self._held: S3Credential | None = None
        self._ends_ms: int | None = None
        self._fetched_ms: int | None = None
        self._failure: FirnError | None = None

    def __call__(self) -> S3Credential:
        """Return the credentials to sign with. Raises what the source raises, unless the held ones are still
        valid."""
        held = self._held
        if held is not None and not self._ends_within(RENEW_BEFORE_MS):
            return held
        with self._lock:
            if self._held is None or self._ends_within(RENEW_BEFORE_MS):
                self._fetch(fresh=False)
            return self._good()

    def renew(self, refused: S3Credential | None) -> bool:
        """Replace credentials that a store has refused; return False where the source returns the same again.

        Raises what the source raises.
        """
        with self._lock:
            if refused is None or self._held is None or _is_same(self._held, refused):
                self._fetch(fresh=True)
            if self._failure is not None:
                raise self._failure
            held = self._good()
        return refused is None or not _is_same(held, refused)

    def _fetch(self, *, fresh: bool) -> None:
        """Fetch once. Failures, and unchanged keys, also answer the callers right after."""
        now = self._clock.monotonic_ms()
        if self._fetched_ms is not None and now - self._fetched_ms < FETCH_INTERVAL_MS:
            return
        try:
            found = self.source.fetch(fresh=fresh)
        except FirnError as e:
            self._failure, self._fetched_ms = e, self._clock.monotonic_ms()
        else:
            is_news = self._held is None or not _is_same(found, self._held)
            self._fetched_ms = None if is_news else self._clock.monotonic_ms()
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
    """Return whether both sign alike, whatever their expiry."""
    return all(one.get(name) == other.get(name) for name in ("access_key_id", "secret_access_key", "token"))
