"""Changes of finalized features (Apache Kafka ``FeatureControlManager``). [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.activation import MIN_ISR, cluster_min_isr
from service.metadata.controller.decision import ControllerResult, QuorumLevel, decided
from service.metadata.controller.requests import ResourceType
from service.metadata.features import (
    CATALOG_VERSION,
    CUTS_LEVEL,
    ELR_VERSION,
    REWRITES_LEVEL,
    supported_features,
)
from service.metadata.image import KRAFT_VERSION, FeatureRange, MetadataImage
from service.metadata.records import ConfigRecord, FeatureLevelRecord, MetadataRecord, NoOpRecord

_NOT_SUPPORTED: Final = FeatureRange("", 0, 0)


class UpgradeType(IntEnum):
    """Kafka's ``FeatureUpdate.UpgradeType``."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


UPGRADE_TYPES: Final = frozenset(UpgradeType)


class FeatureUpdate(NamedTuple):
    """New level of one feature; `upgrade_type` is the number on the wire and may be unknown."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


class Electorate(NamedTuple):
    """Nodes that must support a level: this controller with its ranges, and the quorum's other voters."""

    node_id: int
    supported: tuple[FeatureRange, ...]
    voters: tuple[int, ...] = ()
    kraft_version: int = 0
    """Level in the quorum's log, committed or not."""


def update_features(
    image: MetadataImage,
    updates: Sequence[FeatureUpdate],
    *,
    node_id: int,
    validate_only: bool = False,
    supported: tuple[FeatureRange, ...] | None = None,
    voters: tuple[int, ...] = (),
    min_isr: int = 1,
    kraft_version: int = 0,
) -> ControllerResult[None]:
    """Change all features, or none. Raises `RequestError` INVALID_UPDATE_VERSION for the first invalid one.

    `min_isr`: this node's ``min.insync.replicas``, which becomes the cluster's once eligible leader replicas
    are enabled. `kraft_version`: the quorum's level. The quorum writes a new one beside the metadata, after
    it has checked that all voters support it; a no-op record lets the caller wait for the commit.
    """
    electorate = Electorate(
        node_id, supported_features() if supported is None else supported, voters, kraft_version
    )
    by_name = {update.name: update for update in updates}  # of equal names the last counts
    records: list[MetadataRecord] = []
    for update in by_name.values():
        why = _why_not(image, update, electorate)
        if why is not None:
            raise RequestError(ErrorCode.invalid_update_version, why)
        if update.name != KRAFT_VERSION:
            records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    elr = by_name.get(ELR_VERSION)
    if elr is not None and elr.level > 0:
        records = [*_one_min_isr(image, min_isr), *records]
    kraft = by_name.get(KRAFT_VERSION)
    if kraft is None or kraft.upgrade_type != UpgradeType.UPGRADE:
        return decided(() if validate_only else records, None)
    decision = decided(() if validate_only else [*records, NoOpRecord()], None)
    return replace(decision, quorum_level=QuorumLevel(kraft.level, validate_only))


def _one_min_isr(image: MetadataImage, min_isr: int) -> Iterable[MetadataRecord]:
    """Set ``min.insync.replicas`` for the cluster and remove brokers' own: elections depend on one number."""
    kind = int(ResourceType.BROKER)
    if MIN_ISR not in image.config(kind, ""):
        yield cluster_min_isr(min_isr)
    for resource_type, name in sorted(image.configs):
        if resource_type == kind and name and MIN_ISR in image.config(kind, name):
            yield ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR, value=None)


def _why_not(image: MetadataImage, update: FeatureUpdate, electorate: Electorate) -> str | None:
    reason = _reason(image, update, electorate)
    return None if reason is None else _invalid(update, reason)


def _invalid(update: FeatureUpdate, reason: str) -> str:
    return f"Invalid update version {update.level} for feature {update.name}. {reason}"


def _reason(image: MetadataImage, update: FeatureUpdate, electorate: Electorate) -> str | None:
    name, level, kind = update
    if kind not in UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    for what, ranges in _nodes(image, electorate):
        known = ranges.get(name, _NOT_SUPPORTED)
        if not known.min_level <= level <= known.max_level:
            if known.max_level == 0:
                return f"{what} does not support this feature."
            return f"{what} only supports versions {known.min_level}-{known.max_level}"
    for voter in electorate.voters:
        if voter != electorate.node_id and voter not in image.controllers:
            return f"controller {voter} has not registered, and may not support this feature"
    current = electorate.kraft_version if name == KRAFT_VERSION else image.features.get(name, 0)
    if level < current and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if level > current and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if level < current and name == KRAFT_VERSION:
        return "Can't downgrade the version of this feature."
    if level < current and name == CATALOG_VERSION:
        return _why_not_lower(image, level)
    return None


def _why_not_lower(image: MetadataImage, catalog_level: int) -> str | None:
    """Return why the log's records do not allow this level of the remote catalog; None where they do."""
    if catalog_level < REWRITES_LEVEL and image.erasures:
        return "Keys are being erased, which the lower level does not allow."
    if catalog_level < REWRITES_LEVEL and image.rewrites:
        return "Chains are being rewritten, which the lower level does not allow."
    if catalog_level < CUTS_LEVEL and image.restored_tails:
        return "Partitions of a restore are still loading, which the lower level does not allow."
    if catalog_level < 1 and (image.remote or image.tombstones):
        return "The log holds entries of the remote catalog, which the lower level does not allow."
    return None


def _nodes(image: MetadataImage, electorate: Electorate) -> Iterable[tuple[str, Mapping[str, FeatureRange]]]:
    """Yield the nodes that must support a level: this controller, then brokers, then the other
    controllers."""
    node_id = electorate.node_id
    yield f"Local controller {node_id}", {one.name: one for one in electorate.supported}
    for broker in image.brokers.values():
        if broker.id == node_id:
            continue  # this process replaces the registration
        yield f"Broker {broker.id}", {one.name: one for one in broker.features}
    for controller in image.controllers.values():
        if controller.id != node_id:
            yield f"Controller {controller.id}", {one.name: one for one in controller.features}
