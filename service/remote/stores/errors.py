"""Errors of an object store, by what the caller should do about them. [P]

- `ObjectNotFound`: the key does not exist; retrying does not help.
- `StoreUnavailable`: timeouts, 5xx; retry later, with back-off. Three kinds concern the whole store:
  `StoreUnreachable` (nothing listens), `StoreThrottled` (all clients of this store must send less), and
  `CredentialsExpired` (newer ones are fetched).
- `StoreRefused`: the store answered no, for this object or prefix; an operator has to act. `AccessRefused` is
  a missing permission, `ObjectAsleep` an object in an archive class, `RequestUnknown` a request that the
  store does not support. Three kinds concern the whole store: `AccountRefused`, `BucketRefused`, and
  `CredentialsMissing`, which is not an answer of a store.
- `ObjectTruncated`: the object exists but ends before the requested bytes.
- `PreconditionFailed`: the object is not the one that the write was to replace; another writer was first.
- `ReaderClosed`: the reader was closed during the read.
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
    """No connection to the store's endpoint: refused, or no such host."""


class StoreThrottled(StoreUnavailable):
    """The store answered that it gets too many requests: 503 SlowDown, 429."""


class CredentialsExpired(StoreUnavailable):
    """The store answered that the credentials have expired; there may be newer ones."""


class StoreRefused(StorageError):
    """The store answered no: the object is locked, its key is disabled. Not retryable."""


class RequestUnknown(StoreRefused):
    """The store does not support this request, for any object."""


class ObjectAsleep(StoreRefused, DataAsleep):
    """The object lies in an archive class, and must be restored before it can be read."""


class AccessRefused(StoreRefused):
    """The store answered that these credentials lack the permission, for this object or for all."""


class AccountRefused(AccessRefused):
    """The store serves no request with these credentials: an unknown key, a wrong signature."""


class BucketRefused(StoreRefused):
    """There is no such bucket at this endpoint, so none of its objects exist."""


class CredentialsMissing(StoreRefused):
    """There are no credentials to sign requests with."""


OF_THE_STORE: Final = (
    StoreUnreachable,
    StoreThrottled,
    CredentialsExpired,
    AccountRefused,
    BucketRefused,
    CredentialsMissing,
)
"""Errors that concern the account, the bucket or the endpoint, whichever object was requested."""


UNREADABLE: Final = (CorruptionError, ObjectNotFound, StoreRefused)
"""One object cannot be read: readers of many objects go on with the others, except after
`raise_of_the_store`."""


def raise_of_the_store(error: Exception) -> None:
    """Raise `error` again where it concerns the whole store: no other object can be read either."""
    if isinstance(error, OF_THE_STORE):
        raise error


class ObjectTruncated(CorruptionError):
    """The object ends before the requested range."""


class PreconditionFailed(StorageError):
    """The object is not the one that was to be replaced; nothing was written."""


class ReaderClosed(StorageError):
    """The reader is closed; its reads were cancelled."""


@contextmanager
def naming(object_key: str) -> Iterator[None]:
    """Add the object's key to every `CorruptionError` of the block that lacks it."""
    try:
        yield
    except CorruptionError as e:
        if object_key in str(e):
            raise
        named = f"{object_key}: {e}"
        raise (UnknownVersion(named) if isinstance(e, UnknownVersion) else CorruptionError(named)) from e
