"""Creation and deletion of access control entries (Apache Kafka ``AclControlManager``, ``AclApis``). [P]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.access_records import entry_record
from service.metadata.controller.acl_filters import AclFilter, FilterIndex, matches
from service.metadata.controller.decision import EXCESSIVE, ControllerResult, decided_in_steps
from service.metadata.controller.record_gate import check_every_node_reads
from service.metadata.controller.requests import LONGEST_NAME, MAX_RECORDS_PER_OPERATION, is_too_long
from service.metadata.image import MetadataImage
from service.metadata.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from service.security.acls import AclEntry
from service.security.operations import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)

R = TypeVar("R")

_KINDS: Final = (AclResourceType, PatternType, AclOperation, AclPermissionType)
_KNOWN: Final = {kind: frozenset(map(int, kind)) - {0} for kind in _KINDS}
"""Numbers that a filter may have."""
_VALID: Final = {kind: numbers - {1} for kind, numbers in _KNOWN.items()}
"""Numbers that an entry may have; of pattern types some."""
_AT_A_TIME: Final = 64
_TOO_MANY: Final = f"Cannot remove more than {MAX_RECORDS_PER_OPERATION} acls in a single delete operation."


class AclResult(NamedTuple):
    """Result for one entry to create."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None


class AclDeletion(NamedTuple):
    """Result for one filter: the entries that are deleted."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    deleted: tuple[AclEntry, ...] = ()


def create_acls(
    image: MetadataImage, entries: Sequence[AclEntry], *, new_uuid: Callable[[], UUID]
) -> Steps[ControllerResult[list[AclResult]]]:
    """Create the valid entries, in steps; results are in the order of `entries`.

    An entry that is there succeeds without a record. Raises `RequestError` POLICY_VIOLATION for more than
    10,000 entries, and as `check_every_node_reads`.
    """
    if len(entries) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    records: dict[AclEntry, AccessControlEntryRecord] = {}
    taken: set[UUID] = set()
    results = []
    for entry in entries:
        yield
        why = _why_not(entry)
        if why is not None:
            results.append(AclResult(ErrorCode.invalid_request, why))
            continue
        if entry not in records and entry not in image.acls:
            entry_id = new_uuid()
            while entry_id in taken or entry_id in image.acls.entries:
                entry_id = new_uuid()
            taken.add(entry_id)
            records[entry] = entry_record(entry_id, entry)
        results.append(AclResult())
    return (yield from _decided(image, tuple(records.values()), results))


def _decided(
    image: MetadataImage, records: Sequence[MetadataRecord], response: list[R]
) -> Steps[ControllerResult[list[R]]]:
    if records:
        check_every_node_reads(image)
    return (yield from decided_in_steps(records, response))


def _why_not(entry: AclEntry) -> str | None:
    """Return why an entry is invalid, in Kafka's order and words; None where it is not."""
    if entry.resource_type == AclResourceType.CLUSTER and entry.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not entry.name:
        return "Invalid empty resource name"
    if entry.resource_type not in _VALID[AclResourceType]:
        return f"Invalid resourceType {_name(AclResourceType, entry.resource_type)}"
    if entry.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {_name(PatternType, entry.pattern)}"
    if entry.operation not in _VALID[AclOperation]:
        return f"Invalid operation {_name(AclOperation, entry.operation)}"
    if entry.permission not in _VALID[AclPermissionType]:
        return f"Invalid permissionType {_name(AclPermissionType, entry.permission)}"
    if ":" not in entry.principal:
        return (
            f"Could not parse principal from `{entry.principal[:1000]}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if any(map(is_too_long, (entry.name, entry.principal, entry.host))):
        return f"Names have at most {LONGEST_NAME} bytes"
    return None


def _name(kind: type[IntEnum], number: int) -> str:
    return next((one.name for one in kind if one == number), "UNKNOWN")


def delete_acls(
    image: MetadataImage, filters: Sequence[AclFilter]
) -> Steps[ControllerResult[list[AclDeletion]]]:
    """Delete the entries that any filter matches, in steps; results are in the order of `filters`.

    Raises `RequestError` INVALID_REQUEST, with nothing deleted, where the filters match more than 10,000
    entries in all, an entry counted for each filter; POLICY_VIOLATION for more than 10,000 filters.
    """
    if len(filters) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    refused: dict[int, str] = {}
    index = FilterIndex()
    for number, one in enumerate(filters):
        yield
        if (why := _why_unknown(one)) is not None:
            refused[number] = why
        else:
            index.add(number, one)
    found, records = yield from _matching(image, index)
    yield from index.emptied()
    results = []
    for number in range(len(filters)):
        yield
        if number in refused:
            results.append(AclDeletion(ErrorCode.invalid_request, refused[number]))
        else:
            results.append(AclDeletion(deleted=tuple(found.get(number, ()))))
    return (yield from _decided(image, records, results))


def _matching(
    image: MetadataImage, index: FilterIndex
) -> Steps[tuple[dict[int, list[AclEntry]], list[RemoveAccessControlEntryRecord]]]:
    """Return the entries that each filter matches, and the records that remove them."""
    found: dict[int, list[AclEntry]] = {}
    records: list[RemoveAccessControlEntryRecord] = []
    matched = 0
    for count, (entry_id, entry) in enumerate(image.acls.entries.items()):
        if not count % _AT_A_TIME:
            yield
        before = matched
        for number in index.matching(entry):
            matched += 1
            if matched > MAX_RECORDS_PER_OPERATION:
                raise RequestError(ErrorCode.invalid_request, _TOO_MANY)
            found.setdefault(number, []).append(entry)
        if matched > before:
            records.append(RemoveAccessControlEntryRecord(id=entry_id))
    return found, records


def _why_unknown(wanted: AclFilter) -> str | None:
    if wanted.resource_type not in _KNOWN[AclResourceType] or wanted.pattern not in _KNOWN[PatternType]:
        return "Unknown patternFilter."
    if wanted.operation not in _KNOWN[AclOperation] or wanted.permission not in _KNOWN[AclPermissionType]:
        return "Unknown entryFilter."
    return None


def describe_acls(image: MetadataImage, wanted: AclFilter) -> Steps[list[AclEntry]]:
    """Return the entries that the filter matches, in steps and in no order."""
    found = []
    for count, entry in enumerate(image.acls.entries.values()):
        if not count % _AT_A_TIME:
            yield
        if matches(wanted, entry):
            found.append(entry)
    return found
