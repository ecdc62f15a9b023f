"""Changes and descriptions of SCRAM credentials. [P]

Source: Apache Kafka ``ScramControlManager`` and ``ScramImage``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.metadata.controller.decision import ControllerResult, decided_in_steps
from service.metadata.controller.record_gate import check_every_node_reads
from service.metadata.controller.requests import LONGEST_NAME, is_too_long
from service.metadata.credentials import MECHANISMS, ScramMechanism
from service.metadata.image import MetadataImage
from service.metadata.records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
LONGEST_SECRET: Final = 1024
"""Bytes of a salt and of a salted password at most."""
_HASHES: Final = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}
_TWICE: Final = "A user credential cannot be altered twice in the same request"


class DeleteCredential(NamedTuple):
    """Credential to delete; `mechanism` is the number on the wire and may be unknown."""

    user: str
    mechanism: int


class UpsertCredential(NamedTuple):
    """Credential to set; `mechanism` is the number on the wire and may be unknown."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"UpsertCredential({self.user!r}, {self.mechanism}, {self.iterations})"


class AlterCredentialResult(NamedTuple):
    """Result for one user."""

    user: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class CredentialInfo(NamedTuple):
    """Public part of a credential."""

    mechanism: int
    iterations: int


class UserDescription(NamedTuple):
    """Credentials of one user."""

    user: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    credentials: tuple[CredentialInfo, ...] = ()


_Why = tuple[ErrorCode, str | None]


def alter_scram_credentials(
    image: MetadataImage, deletions: Sequence[DeleteCredential], upsertions: Sequence[UpsertCredential]
) -> Steps[ControllerResult[list[AlterCredentialResult]]]:
    """Delete and set credentials, in steps; a user that is refused does not affect the others.

    Only keys are kept, not the salted passwords. One result for each user: deletions, upsertions, refused
    ones. Raises `RequestError` as `check_every_node_reads` and `decided_in_steps`.
    """
    yield
    times = Counter([*(one.user for one in deletions), *(one.user for one in upsertions)])
    records: list[MetadataRecord] = []
    results: list[AlterCredentialResult] = []
    refused: dict[str, _Why] = {}
    for one in deletions:
        yield
        if (why := _why_not(one.user, one.mechanism) or _why_missing(image, one)) is not None:
            refused.setdefault(one.user, why)
        elif times[one.user] > 1:
            refused.setdefault(one.user, (ErrorCode.duplicate_resource, _TWICE))
        else:
            records.append(RemoveUserScramCredentialRecord(name=one.user, mechanism=one.mechanism))
            results.append(AlterCredentialResult(one.user))
    for new in upsertions:
        yield
        if new.user in refused:
            continue
        if (why := _why_not(new.user, new.mechanism) or _why_unacceptable(new)) is not None:
            refused[new.user] = why
        elif times[new.user] > 1:
            refused[new.user] = (ErrorCode.duplicate_resource, _TWICE)
        else:
            records.append(_keys_of(new))
            results.append(AlterCredentialResult(new.user))
    results += [AlterCredentialResult(user, *why) for user, why in refused.items()]
    if records:
        check_every_node_reads(image)
    return (yield from decided_in_steps(records, results))


def _why_not(user: str, mechanism: int) -> _Why | None:
    if not user:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    if mechanism not in MECHANISMS:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    return None


def _why_missing(image: MetadataImage, one: DeleteCredential) -> _Why | None:
    if one.mechanism in image.scram.get(one.user, {}):
        return None
    return ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"


def _why_unacceptable(new: UpsertCredential) -> _Why | None:
    code = ErrorCode.unacceptable_credential
    if new.iterations < MIN_ITERATIONS:
        return code, "Too few iterations"
    if new.iterations > MAX_ITERATIONS:
        return code, "Too many iterations"
    if is_too_long(new.user):
        return code, f"Usernames have at most {LONGEST_NAME} bytes"
    if not new.salted_password:
        return code, "Salted password must not be empty"
    if max(len(new.salt), len(new.salted_password)) > LONGEST_SECRET:
        return code, f"Salts and salted passwords have at most {LONGEST_SECRET} bytes"
    return None


def _keys_of(new: UpsertCredential) -> UserScramCredentialRecord:
    """Return the credential's record, with the keys that RFC 5802 derives from the salted password."""
    kind = _HASHES[ScramMechanism(new.mechanism)]
    client_key = hmac.digest(new.salted_password, b"Client Key", kind)
    return UserScramCredentialRecord(
        name=new.user,
        mechanism=new.mechanism,
        salt=new.salt,
        stored_key=hashlib.new(kind, client_key).digest(),
        server_key=hmac.digest(new.salted_password, b"Server Key", kind),
        iterations=new.iterations,
    )


def describe_scram_credentials(
    image: MetadataImage, users: Sequence[str] | None
) -> Steps[list[UserDescription]]:
    """Describe the credentials of `users`, in steps; those of all users where none is named."""
    found = []
    for user, times in _counted(image, users):
        yield
        found.append(_description(image, user, times))
    return found


def _counted(image: MetadataImage, users: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    if users:
        yield from Counter(users).items()
    else:
        yield from ((user, 1) for user in image.scram)


def _description(image: MetadataImage, user: str, times: int) -> UserDescription:
    if times > 1:
        return UserDescription(
            user,
            ErrorCode.duplicate_resource,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    credentials = image.scram.get(user)
    if credentials is None:
        return UserDescription(
            user,
            ErrorCode.resource_not_found,
            f"Attempt to describe a user credential that does not exist: {user}",
        )
    infos = [CredentialInfo(mechanism, one.iterations) for mechanism, one in sorted(credentials.items())]
    return UserDescription(user, credentials=tuple(infos))
