"""Errors by whose fault they are. The class decides who retries, who logs and who dies. [P]

- `RequestError`: the peer's fault. It is answered with the protocol's error code and has no other effect.
- `CorruptionError`: bytes at rest or on the wire are not what they must be.
- `StorageError`: the environment's fault (disk, object store). The owner of the work retries.
- `ConfigError`: the operator's fault. The node refuses to start, or refuses the request.
- Any other exception that escapes is a bug of Firn and ends the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Spark's workers import this module: no kio for them
    from kio.schema.errors import ErrorCode


class FirnError(Exception):
    """Root of every error that Firn raises on purpose."""


class RequestError(FirnError):
    """A request that the protocol answers with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None


class CorruptionError(FirnError):
    """Bytes that fail a checksum, a length or a magic number. The message names the place."""


class UnknownVersion(CorruptionError):
    """A valid document of a later version. It needs later software, not repair."""


class StorageError(FirnError):
    """A failed operation of the disk or the object store."""


class DataAsleep(StorageError):
    """Existing bytes in an archive storage class, unreadable until they are restored from it."""


class ConfigError(FirnError):
    """A refused configuration key or value; the message names the key and the reason.

    `problems`: one text for each that is wrong; the message has them all, a line each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InvariantError(FirnError):
    """A bug of Firn: a numbered invariant (docs/invariants.md) does not hold. Never caught, never retried."""
