"""What an object store can answer instead of bytes, by what the caller should do about it. [P]

- `ObjectNotFound`: the key is not there; retrying does not help.
- `StoreUnavailable`: timeouts, refused connections, 5xx; retry later, with backoff. Two kinds of it say more:
  `StoreThrottled`, so that all who ask this store ask less, and `CredentialsExpired`, where newer ones are
  fetched.
- `StoreRefused`: credentials, permissions, a bucket that does not exist; an operator has to act. Two kinds of
  it say nothing of what the store can do: `AccessRefused`, where these credentials may not do that, and
  `CredentialsMissing`, which no store has answered: there is nothing to sign with.
- `ObjectTruncated`: the object is there but ends before the bytes that were asked for.
- `PreconditionFailed`: the object is not the one that the write was to replace; somebody else was there.
- `ReaderClosed`: the reader was closed while the read was under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.base.errors import CorruptionError, StorageError, UnknownVersion


class ObjectNotFound(StorageError):
    """No object under this key."""

    def __init__(self, key: str, detail: str = "") -> None:
        super().__init__(f"no such object: {key}{': ' + detail if detail else ''}")
        self.key = key


class StoreUnavailable(StorageError):
    """The store did not answer, or answered that it cannot right now. Retryable."""


class StoreThrottled(StoreUnavailable):
    """The store answered that it is asked too much: 503 SlowDown, 429."""


class CredentialsExpired(StoreUnavailable):
    """The store answered that the credentials have expired, and there may be newer ones."""


class StoreRefused(StorageError):
    """The store answered, and said no: credentials, permissions, no such bucket. Not retryable."""


class AccessRefused(StoreRefused):
    """The store answered that who asks may not do that, or that it does not know who asks."""


class CredentialsMissing(StoreRefused):
    """There are no credentials to ask with."""


class ObjectTruncated(CorruptionError):
    """The object ends before the range that was asked for."""


class PreconditionFailed(StorageError):
    """Another object lies there than the one that was to be replaced; nothing was written."""


class ReaderClosed(StorageError):
    """The reader is closed; what was under way has been given up."""


@contextmanager
def naming(object_key: str) -> Iterator[None]:
    """Whatever is found corrupt names its object, or what else it was read from."""
    try:
        yield
    except CorruptionError as e:
        if object_key in str(e):
            raise
        named = f"{object_key}: {e}"
        raise (UnknownVersion(named) if isinstance(e, UnknownVersion) else CorruptionError(named)) from e
