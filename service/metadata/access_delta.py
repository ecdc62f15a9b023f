"""Changes to access control entries, SCRAM credentials, tokens and client quotas, from records. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.steps import Steps
from service.metadata.client_quotas import ClientQuotas, QuotaEntity, entity_of
from service.metadata.credentials import MECHANISMS, ScramCredentials
from service.metadata.image import MetadataImage
from service.metadata.persistent import REMOVED, PersistentMap, Removed
from service.metadata.records import (
    ZERO_UUID,
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from service.security.acls import AclEntry, AclSet
from service.security.operations import AclOperation, AclPermissionType, AclResourceType, PatternType
from service.security.scram_credential import ScramCredential
from service.security.tokens import DelegationToken, parse_principal

_AT_A_TIME: Final = 16
_SHARDS: Final = 256
"""Dictionaries of changed entries: one for a million of them would hold the loop whenever it grows."""
_RESOURCE_TYPES: Final = frozenset(map(int, AclResourceType)) - {AclResourceType.UNKNOWN, AclResourceType.ANY}
_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_PERMISSIONS: Final = (AclPermissionType.DENY, AclPermissionType.ALLOW)
_FIRST_OPERATION: Final = AclOperation.ALL
"""A number that is greater than this software's is an operation of a later Kafka."""


class AccessMaps(NamedTuple):
    """The next image's ACLs, credentials, tokens and quotas."""

    acls: AclSet
    scram: ScramCredentials
    tokens: PersistentMap[str, DelegationToken]
    client_quotas: ClientQuotas


class AccessDelta:
    """Changes to who may log in, do what, and how fast. A record that contradicts the image is a
    `CorruptionError`. A part without a change is the same object in the next image.

    ``users``: names of users whose credentials have changed. ``entities``: those whose quotas have changed.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._acls = image.acls
        """The image's, or those that a build has made of them."""
        self._entries: dict[int, dict[UUID, AclEntry | Removed]] = {}
        """Changed entries, in shards by their ids."""
        self._credentials: dict[str, dict[int, ScramCredential]] = {}
        self._tokens: dict[str, DelegationToken | Removed] = {}
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.users = self._credentials.keys()
        self.entities = self._quotas.keys()

    # -- access control entries

    def add_entry(self, record: AccessControlEntryRecord) -> None:
        """Add an access control entry."""
        entry_id = record.id or ZERO_UUID
        entry = AclEntry(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )
        if self._has_entry(entry_id):
            raise CorruptionError(f"metadata record adds access control entry {entry_id} again")
        if (
            entry.resource_type not in _RESOURCE_TYPES
            or entry.pattern not in _PATTERNS
            or entry.permission not in _PERMISSIONS
            or entry.operation < _FIRST_OPERATION
            or not entry.name
            or ":" not in entry.principal
        ):
            raise CorruptionError(f"access control entry {entry_id} cannot be: {entry!r:.300}")
        self._shard(entry_id)[entry_id] = entry

    def remove_entry(self, record: RemoveAccessControlEntryRecord) -> None:
        """Remove an access control entry."""
        entry_id = record.id or ZERO_UUID
        if not self._has_entry(entry_id):
            raise CorruptionError(
                f"metadata record removes access control entry {entry_id}, which is not there"
            )
        if entry_id in self._acls.entries:
            self._shard(entry_id)[entry_id] = REMOVED
        else:
            del self._shard(entry_id)[entry_id]

    def _shard(self, entry_id: UUID) -> dict[UUID, AclEntry | Removed]:
        return self._entries.setdefault(entry_id.int % _SHARDS, {})

    def _has_entry(self, entry_id: UUID) -> bool:
        changed = self._shard(entry_id).get(entry_id)
        return entry_id in self._acls.entries if changed is None else changed is not REMOVED

    def set_acls(self, acls: AclSet) -> None:
        """Replace all access control entries by those of a snapshot."""
        self._acls = acls
        self._entries.clear()

    # -- credentials

    def set_credential(self, record: UserScramCredentialRecord) -> None:
        """Set a user's credential for one mechanism."""
        if record.mechanism not in MECHANISMS:
            raise CorruptionError(f"credential of unknown SCRAM mechanism {record.mechanism}")
        if not record.name or record.iterations < 1:
            raise CorruptionError(f"credential of user {record.name!r} of {record.iterations} iterations")
        self._credentials_of(record.name)[record.mechanism] = ScramCredential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )

    def remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        """Remove a user's credential for one mechanism."""
        if self._credentials_of(record.name).pop(record.mechanism, None) is None:
            raise CorruptionError(
                f"metadata record removes the credential of user {record.name!r:.300} for SCRAM mechanism "
                f"{record.mechanism}, which is not there"
            )

    def _credentials_of(self, user: str) -> dict[int, ScramCredential]:
        found = self._credentials.get(user)
        if found is None:
            found = self._credentials[user] = dict(self._image.scram.get(user, {}))
        return found

    # -- delegation tokens

    def set_token(self, record: DelegationTokenRecord) -> None:
        """Add a delegation token, or replace the one of its id."""
        try:
            owner, requester = parse_principal(record.owner), parse_principal(record.requester)
            renewers = tuple(map(parse_principal, record.renewers))
        except ValueError as e:
            raise CorruptionError(f"delegation token {record.token_id!r:.100}: {e}") from e
        if not record.token_id:
            raise CorruptionError(f"delegation token of {owner} without an id")
        self._tokens[record.token_id] = DelegationToken(
            record.token_id,
            owner,
            requester,
            renewers,
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        """Remove a delegation token. It may be gone: Kafka's controllers decide on committed tokens alone,
        and so write two removals where two requests come at once."""
        self._tokens[record.token_id] = REMOVED

    # -- quotas

    def change_quota(self, record: ClientQuotaRecord) -> None:
        """Set or remove one quota of an entity."""
        try:
            entity = entity_of((part.entity_type, part.entity_name) for part in record.entity)
        except ValueError as e:
            raise CorruptionError(f"client quota {record.key!r:.300}: {e!s:.300}") from e
        values = self._quotas.get(entity)
        if values is None:
            values = self._quotas[entity] = dict(self._image.client_quotas.get(entity, {}))
        if not record.remove:
            values[record.key] = record.value
        elif values.pop(record.key, None) is None:
            raise CorruptionError(
                f"metadata record removes quota {record.key!r:.300} of {entity!r:.300}, which is not there"
            )

    # -- the next image

    def build_in_steps(self) -> Steps[AccessMaps]:
        """Build the next image's parts."""
        image = self._image
        yield from self._build_acls()
        credentials: dict[str, Mapping[int, ScramCredential] | Removed] = {
            user: values or REMOVED
            for user, values in self._credentials.items()
            if values != image.scram.get(user, {})
        }
        quotas: dict[QuotaEntity, Mapping[str, float] | Removed] = {
            entity: values or REMOVED
            for entity, values in self._quotas.items()
            if values != image.client_quotas.get(entity, {})
        }
        return AccessMaps(
            self._acls,
            (yield from image.scram.with_changes_in_steps(credentials)),
            (yield from image.tokens.with_changes_in_steps(self._changed_tokens())),
            (yield from image.client_quotas.with_changes_in_steps(quotas)),
        )

    def _changed_tokens(self) -> dict[str, DelegationToken | Removed]:
        tokens = self._image.tokens
        return {one: new for one, new in self._tokens.items() if tokens.get(one, REMOVED) != new}

    def _build_acls(self) -> Steps[None]:
        """Make the changed set. Changes are dropped one by one: to free many at once would hold the loop."""
        before, edit = self._acls.entries, self._acls.edit()
        shards = [one for one in self._entries.values() if one]
        if not shards:
            return
        number = 0
        for shard in shards:  # first what is removed, as it may return under another id
            for entry_id, entry in shard.items():
                number += 1
                if not number % _AT_A_TIME:
                    yield
                if (known := before.get(entry_id)) is not None and known != entry:
                    edit.remove(entry_id)
        for shard in shards:
            while shard:
                entry_id, new = shard.popitem()
                number += 1
                if not number % _AT_A_TIME:
                    yield
                if not isinstance(new, Removed) and before.get(entry_id) != new:
                    edit.add(entry_id, new)
        self._acls = yield from edit.done_in_steps()
