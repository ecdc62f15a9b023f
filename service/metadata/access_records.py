"""Records of what an image says of access: entries, credentials, tokens and quotas; their differences. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from service.base.steps import Steps
from service.metadata.client_quotas import QuotaEntity
from service.metadata.image import MetadataImage
from service.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    MetadataRecord,
    QuotaEntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from service.security.acls import AclEntry, AclSet
from service.security.scram_credential import ScramCredential
from service.security.tokens import DelegationToken

_BUCKET_BITS: Final = 12
_UUID_BITS: Final = 128


def entry_record(entry_id: UUID, entry: AclEntry) -> AccessControlEntryRecord:
    """Return the record of an access control entry."""
    return AccessControlEntryRecord(
        id=entry_id,
        resource_type=entry.resource_type,
        resource_name=entry.name,
        pattern_type=entry.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def scram_record(user: str, mechanism: int, credential: ScramCredential) -> UserScramCredentialRecord:
    """Return the record of a user's credential."""
    return UserScramCredentialRecord(name=user, mechanism=mechanism, **credential._asdict())


def token_record(token: DelegationToken) -> DelegationTokenRecord:
    """Return the record of a delegation token."""
    return DelegationTokenRecord(
        owner=str(token.owner),
        requester=str(token.requester),
        renewers=tuple(map(str, token.renewers)),
        issue_timestamp=token.issue_ms,
        max_timestamp=token.max_ms,
        expiration_timestamp=token.expiry_ms,
        token_id=token.id,
    )


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
    """Return the record of a quota; None removes it."""
    return ClientQuotaRecord(
        entity=tuple(QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts),
        key=key,
        value=value or 0.0,
        remove=value is None,
    )


def quota_records(image: MetadataImage) -> Iterator[ClientQuotaRecord]:
    """Yield the records of all quotas, sorted."""
    for entity in sorted(image.client_quotas, key=_sort_key):
        for name, quota in sorted(image.client_quotas[entity].items()):
            yield quota_record(entity, name, quota)


def _sort_key(entity: QuotaEntity) -> tuple[tuple[bool, str], ...]:
    return tuple((name is None, name or "") for name in entity)


def entry_records(image: MetadataImage) -> Iterator[AccessControlEntryRecord]:
    """Yield the records of all access control entries, sorted by id."""
    for some in _by_first_bits(image.acls.entries):
        for entry_id in sorted(some):
            yield entry_record(entry_id, image.acls.entries[entry_id])


def _by_first_bits(ids: Iterable[UUID]) -> list[list[UUID]]:
    """Split ids by their first bits: one sort of a million would hold the interpreter for a second."""
    buckets: list[list[UUID]] = [[] for _ in range(1 << _BUCKET_BITS)]
    for one in ids:
        buckets[one.int >> (_UUID_BITS - _BUCKET_BITS)].append(one)
    return buckets


def scram_records(image: MetadataImage) -> Iterator[UserScramCredentialRecord]:
    """Yield the records of all credentials, sorted."""
    for user in sorted(image.scram):
        for mechanism, credential in sorted(image.scram[user].items()):
            yield scram_record(user, mechanism, credential)


def token_records(image: MetadataImage) -> Iterator[DelegationTokenRecord]:
    """Yield the records of all delegation tokens, sorted."""
    for token_id in sorted(image.tokens):
        yield token_record(image.tokens[token_id])


def same_entries(one: AclSet, other: AclSet) -> Steps[bool]:
    """Return whether two sets have the same entries under the same ids, in steps."""
    if one is other:
        return True
    if len(one.entries) != len(other.entries):
        return False
    for entry_id, entry in one.entries.items():
        yield
        if other.entries.get(entry_id) != entry:
            return False
    return True


def entry_differences(before: AclSet, after: AclSet) -> Iterator[MetadataRecord]:
    """Yield the records that make one set of entries the other."""
    old, new = before.entries, after.entries
    for entry_id, entry in old.items():
        if new.get(entry_id) != entry:
            yield RemoveAccessControlEntryRecord(id=entry_id)
    for entry_id, entry in new.items():
        if old.get(entry_id) != entry:
            yield entry_record(entry_id, entry)


def other_differences(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    """Yield the records of other credentials, tokens and quotas, and None for each unchanged entry, as a
    step."""
    if after.scram is not before.scram:
        yield from _scram_differences(before, after)
    if after.tokens is not before.tokens:
        yield from _token_differences(before, after)
    if after.client_quotas is not before.client_quotas:
        yield from _quota_differences(before, after)


def _scram_differences(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for user, credentials in before.scram.items():
        left = after.scram.get(user, {})
        yield None
        for mechanism in credentials:
            if mechanism not in left:
                yield RemoveUserScramCredentialRecord(name=user, mechanism=mechanism)
    for user, credentials in after.scram.items():
        old = before.scram.get(user, {})
        yield None
        for mechanism, credential in credentials.items():
            if old.get(mechanism) != credential:
                yield scram_record(user, mechanism, credential)


def _token_differences(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for token_id in before.tokens:
        yield None if token_id in after.tokens else RemoveDelegationTokenRecord(token_id=token_id)
    for token_id, token in after.tokens.items():
        yield None if before.tokens.get(token_id) == token else token_record(token)


def _quota_differences(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for entity, values in before.client_quotas.items():
        left = after.client_quotas.get(entity, {})
        yield None
        for key in values:
            if key not in left:
                yield quota_record(entity, key, None)
    for entity, values in after.client_quotas.items():
        old = before.client_quotas.get(entity, {})
        yield None
        for key, value in values.items():
            if old.get(key) != value:
                yield quota_record(entity, key, value)
