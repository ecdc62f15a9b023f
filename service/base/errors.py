"""Errors by whose fault they are, and so by who retries, who logs and who dies. [P]

- `RequestError`: the peer's fault; it is answered with the protocol's error code and nothing else feels it.
- `CorruptionError`: bytes at rest or on the wire are not what they must be.
- `StorageError`: the environment's fault (disk, object store); retried by whoever owns the work.
- `ConfigError`: the operator's fault; refused at start or at the request that brings it.
- anything else that escapes is our bug and ends the node loudly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Spark's workers know these errors too, and would pay for kio with every task
    from kio.schema.errors import ErrorCode


class FirnError(Exception):
    """Root of every error that Firn raises on purpose."""


class RequestError(FirnError):
    """The peer asked for something that the protocol answers with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None


class CorruptionError(FirnError):
    """Bytes failed a checksum, a length or a magic number. The message says where."""


class UnknownVersion(CorruptionError):
    """A sound document of a later version: there is nothing to repair, it is for later software to read."""


class StorageError(FirnError):
    """The disk or the object store did not do what it was asked."""


class DataAsleep(StorageError):
    """The bytes are there, and cannot be read before somebody has restored them from an archive class."""


class ConfigError(FirnError):
    """A configuration key or value is refused; the message names the key and the reason."""


class InvariantError(FirnError):
    """Our own bug: a numbered invariant (docs/invariants.md) does not hold. Never caught, never retried."""
