"""What an object store can answer instead of bytes, by what the caller should do about it. [P]

- `ObjectNotFound`: the key is not there; retrying does not help.
- `StoreUnavailable`: timeouts, 5xx; retry later, with backoff. Three kinds of it speak of the whole store:
  `StoreUnreachable`, where nobody listens, `StoreThrottled`, so that all who ask this store ask less, and
  `CredentialsExpired`, where newer ones are fetched.
- `StoreRefused`: the store answered no, of this object or prefix; an operator has to act. `AccessRefused` is
  for lack of permission, `ObjectAsleep` for objects in an archive class, `RequestUnknown` for requests that
  the store does not have. Three kinds of it speak of the
  whole store: `AccountRefused`, `BucketRefused`, and `CredentialsMissing`, which no store has answered.
- `ObjectTruncated`: the object is there but ends before the bytes that were asked for.
- `PreconditionFailed`: the object is not the one that the write was to replace; somebody else was there.
- `ReaderClosed`: the reader was closed while the read was under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from service.base.errors import CorruptionError, DataAsleep, StorageError, UnknownVersion


class ObjectNotFound(StorageError):
    """No object under this key."""

    def __init__(self, key: str, detail: str = "") -> None:
        super().__init__(f"no such object: {key}{': ' + detail if detail else ''}")
        self.key = key


class StoreUnavailable(StorageError):
    """The store did not answer, or answered that it cannot right now. Retryable."""


class StoreUnreachable(StoreUnavailable):
    """No connection to the store's endpoint can be made: refused, no such host."""


class StoreThrottled(StoreUnavailable):
    """The store answered that it is asked too much: 503 SlowDown, 429."""


class CredentialsExpired(StoreUnavailable):
    """The store answered that the credentials have expired, and there may be newer ones."""


class StoreRefused(StorageError):
    """The store answered, and said no: the object is locked, its key is disabled. Not retryable."""


class RequestUnknown(StoreRefused):
    """The store knows no such request, of whichever object."""


class ObjectAsleep(StoreRefused, DataAsleep):
    """The object lies in an archive class, and cannot be read before it has been restored from there."""


class AccessRefused(StoreRefused):
    """The store answered that these credentials may not do that, of this object or of any."""


class AccountRefused(AccessRefused):
    """The store serves nobody who asks with these credentials: an unknown key, a wrong signature."""


class BucketRefused(StoreRefused):
    """There is no such bucket at this endpoint, so none of its objects is there."""


class CredentialsMissing(StoreRefused):
    """There are no credentials to ask with."""


OF_THE_STORE: Final = (
    StoreUnreachable,
    StoreThrottled,
    CredentialsExpired,
    AccountRefused,
    BucketRefused,
    CredentialsMissing,
)
"""Errors that speak of the account, the bucket or the endpoint, whichever object was asked for."""


UNREADABLE: Final = (CorruptionError, ObjectNotFound, StoreRefused)
"""One object cannot be read: whoever reads many goes on with the others, but for `raise_of_the_store`."""


def raise_of_the_store(error: Exception) -> None:
    """Raise `error` again where it speaks of the whole store: no other object can be read either."""
    if isinstance(error, OF_THE_STORE):
        raise error


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
