"""Encryption at rest that each write asks S3 for, where a bucket's policy demands it. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.config.tables.checks import kms_key_problem

KMS: Final = "aws:kms"
ALGORITHMS: Final = ("AES256", KMS)


class S3Encryption(NamedTuple):
    """`algorithm` of `ALGORITHMS`; `kms_key_id` names the key of `KMS`, None for the account's own."""

    algorithm: str
    kms_key_id: str | None = None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of a request that writes an object or begins an upload in parts, names in lower case."""
        found = [("x-amz-server-side-encryption", self.algorithm)]
        if self.kms_key_id is not None:
            found.append(("x-amz-server-side-encryption-aws-kms-key-id", self.kms_key_id))
        return tuple(found)


def s3_encryption(algorithm: str | None, kms_key_id: str | None) -> S3Encryption | None:
    """Return what to ask for; None where nothing is, so that the bucket's own default holds.

    Raises `ConfigError` for an unknown algorithm, and for a key that is invalid or has no algorithm for it.
    """
    if kms_key_id is not None:
        if algorithm != KMS:
            raise ConfigError(f"a key of KMS goes with the algorithm {KMS}, not {algorithm or 'the default'}")
        if (problem := kms_key_problem(kms_key_id)) is not None:
            raise ConfigError(f"{kms_key_id[:100]!r}: {problem}")
    if algorithm is None:
        return None
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"{algorithm[:100]!r} is not an encryption of S3: {' or '.join(ALGORITHMS)}")
    return S3Encryption(algorithm, kms_key_id)
