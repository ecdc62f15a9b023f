"""Changes and descriptions of client quotas. [P]

Source: Apache Kafka ``ClientQuotaControlManager`` and ``ClientQuotasImage``. Addresses are never looked up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.addresses import normalized
from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.access_records import quota_record
from service.metadata.client_quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, QuotaEntity, entity_of
from service.metadata.controller.decision import ControllerResult, decided_in_steps
from service.metadata.controller.record_gate import check_every_node_reads
from service.metadata.controller.requests import LONGEST_NAME, is_too_long
from service.metadata.image import MetadataImage
from service.metadata.records import ClientQuotaRecord

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_LONG: Final = ("LONG", float(2**63))
_INT: Final = ("INT", float(2**31 - 1))
_KEYS: Final = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Quotas of users and clients; those of whole numbers with Kafka's type and its greatest value."""
_IP_KEYS: Final = {CONNECTION_CREATION_RATE: _INT}
_FRACTION: Final = 1e-6


class MatchType(IntEnum):
    """Ways to match one type of an entity (Kafka's ``DescribeClientQuotasRequest``)."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


_MATCH_TYPES: Final = frozenset(MatchType)
Parts = tuple[tuple[str, str | None], ...]
"""Type and name of each part of an entity, as on the wire; the name of the default is None."""


class QuotaAlteration(NamedTuple):
    """Changes to the quotas of an entity: keys with values, None to remove one."""

    parts: Parts
    changes: tuple[tuple[str, float | None], ...]


class AlterQuotaResult(NamedTuple):
    """Result for one entity."""

    parts: Parts
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class QuotaFilter(NamedTuple):
    """Part of a filter; `match_type` is the number on the wire and may be unknown."""

    entity_type: str
    match_type: int
    match: str | None


def alter_client_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Steps[ControllerResult[list[AlterQuotaResult]]]:
    """Change the quotas of each entity completely or not at all, in steps; one result for each entity.

    A refused entity does not affect the others. Of an entity that is there twice the first alteration is
    made, and the entity's result is INVALID_REQUEST. An unchanged value writes nothing. Raises `RequestError`
    as `check_every_node_reads` and `decided_in_steps`.
    """
    records: list[ClientQuotaRecord] = []
    results: dict[Parts, AlterQuotaResult] = {}
    for one in alterations:
        yield
        parts = tuple(sorted(dict(one.parts).items()))  # of equal types the last counts
        if parts in results:
            why: str | None = f"Ignoring duplicate entity {_text(parts)}"
        else:
            why = _why_keys_twice(one, parts) or _why_no_entity(parts) or _why_invalid(one, parts)
            if why is None:
                records += _changes(image, one, _entity_of(image, parts))
        error = ErrorCode.none if why is None else ErrorCode.invalid_request
        results[parts] = AlterQuotaResult(parts, error, why)
    if records and not validate_only:
        check_every_node_reads(image)
    return (yield from decided_in_steps(() if validate_only else records, list(results.values())))


def _text(parts: Parts) -> str:
    return "{" + ", ".join(f"{kind}={(name or '<default>')[:256]}" for kind, name in parts) + "}"


def _why_keys_twice(one: QuotaAlteration, parts: Parts) -> str | None:
    if len(dict(one.changes)) == len(one.changes):
        return None
    return f"Duplicate quota key not updating quota for this entity {_text(parts)}"


def _why_no_entity(parts: Parts) -> str | None:
    """Return why there can be no such entity, in Kafka's order and words."""
    if not parts:
        return "Invalid empty client quota entity"
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {kind[:256]}"
        if name == "":
            return f"Empty {kind} not supported"
        if name is not None and is_too_long(name):
            return f"Names of a {kind} have at most {LONGEST_NAME} bytes"
    found = dict(parts)
    if IP in found and len(found) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    ip = found.get(IP)
    if ip is not None and not _is_address(ip):
        return f"{ip[:256]} is not a valid IP address; host names are not looked up"
    return None


def _entity_of(image: MetadataImage, parts: Parts) -> QuotaEntity:
    """Return the entity. A new address is written as nodes write those of connections."""
    entity = entity_of(parts)
    if not entity.ip or entity in image.client_quotas:
        return entity
    return entity._replace(ip=normalized(entity.ip))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _why_invalid(one: QuotaAlteration, parts: Parts) -> str | None:
    keys: Mapping[str, tuple[str, float] | None] = _IP_KEYS if dict(parts).keys() == {IP} else _KEYS
    return next(
        (why for key, value in one.changes if value is not None and (why := _why_value(keys, key, value))),
        None,
    )


def _why_value(keys: Mapping[str, tuple[str, float] | None], key: str, value: float) -> str | None:
    if key not in keys:
        return f"Invalid configuration key {key[:256]}"
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    whole = keys[key]
    if whole is None:
        return None
    kind, most = whole
    if value > most:
        return f"Proposed value for {key} is too large for {'an' if kind == 'INT' else 'a'} {kind}."
    if value % 1.0 > _FRACTION:
        return f"{key} cannot be a fractional value."
    return None


def _changes(image: MetadataImage, one: QuotaAlteration, entity: QuotaEntity) -> list[ClientQuotaRecord]:
    current = image.client_quotas.get(entity, {})
    return [quota_record(entity, key, value) for key, value in one.changes if current.get(key) != value]


def describe_client_quotas(
    image: MetadataImage, filters: Sequence[QuotaFilter], *, strict: bool
) -> Steps[list[tuple[QuotaEntity, dict[str, float]]]]:
    """Return the entities that match all `filters`, with their quotas, in steps.

    `strict`: entities have no other parts. Raises `RequestError` INVALID_REQUEST for filters that contradict
    each other, UNSUPPORTED_VERSION for an unknown type of entity.
    """
    yield
    exact, specified = _parsed(filters)
    found = []
    for entity, quotas in image.client_quotas.items():
        yield
        parts = dict(entity.parts)
        if strict and len(parts) != len(exact) + len(specified):
            continue
        if specified <= parts.keys() and all(
            kind in parts and _is_same(kind, parts[kind], name) for kind, name in exact.items()
        ):
            found.append((entity, dict(quotas)))
    return found


def _is_same(kind: str, name: str | None, wanted: str | None) -> bool:
    if name == wanted or kind != IP or not name or not wanted:
        return name == wanted
    return normalized(name) == normalized(wanted)


def _parsed(filters: Sequence[QuotaFilter]) -> tuple[dict[str, str | None], set[str]]:
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for kind, match_type, match in filters:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in specified:
            raise _invalid(f"Entity type {kind[:256]} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise RequestError(ErrorCode.unsupported_version, f"Unsupported entity type {kind[:256]}")
        if match_type not in _MATCH_TYPES:
            raise _invalid(f"Unknown match type {match_type}")
        if match_type == MatchType.EXACT and match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != MatchType.EXACT and match is not None:
            name = "DEFAULT" if match_type == MatchType.DEFAULT else "SPECIFIED"
            raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
        if match_type == MatchType.SPECIFIED:
            specified.add(kind)
        else:
            exact[kind] = match
    kinds = {*exact, *specified}
    if IP in kinds and kinds & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user "
            "or clientId filter component."
        )
    return exact, specified


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
