"""First records that a controller writes when it takes over. [P]

Source: Apache Kafka ``ActivationRecordsGenerator``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import ResourceType
from service.metadata.features import BOOTSTRAP, CATALOG_VERSION, CUTS_LEVEL, ELR_VERSION, REWRITES_LEVEL
from service.metadata.frames import newest
from service.metadata.image import FeatureRange, MetadataImage
from service.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
)

MIN_ISR: Final = "min.insync.replicas"


def activate(
    image: MetadataImage,
    bootstrap: Sequence[MetadataRecord],
    *,
    min_isr: int,
    supported: Collection[FeatureRange],
) -> ControllerResult[None]:
    """Abort the transaction that the last controller left open; bootstrap an empty log.

    `bootstrap` are a new cluster's records. `min_isr` is this node's ``min.insync.replicas``, which becomes
    the cluster's where eligible leader replicas are enabled, unless `bootstrap` has one: they need one number
    for all brokers. A log that has records of the remote catalog and no feature level for them gets the
    level. A restored cluster's first records are many: they are written in several batches, and have effect
    together.
    """
    records: list[MetadataRecord] = []
    if image.transaction is not None:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    if not image.features:
        records += [BeginTransactionRecord(name=BOOTSTRAP), *bootstrap]
        levels = {one.name: one.feature_level for one in bootstrap if isinstance(one, FeatureLevelRecord)}
        if levels.get(ELR_VERSION, 0) > 0 and not any(map(_is_cluster_min_isr, bootstrap)):
            records.append(cluster_min_isr(min_isr))
        records.append(EndTransactionRecord())
    elif gates_catalog(supported):
        level = _level_of_records(image)
        if level > image.features.get(CATALOG_VERSION, 0):
            records.append(FeatureLevelRecord(name=CATALOG_VERSION, feature_level=level))
    return ControllerResult(tuple(map(newest, records)), None, is_atomic=False)


def _level_of_records(image: MetadataImage) -> int:
    """Return the least level of the remote catalog whose records are those of the log: a node that was alone,
    and had no level, may have written them."""
    if image.erasures or image.rewrites:
        return REWRITES_LEVEL
    if image.restored_tails:
        return CUTS_LEVEL
    return int(bool(image.remote or image.tombstones))


def _is_cluster_min_isr(record: MetadataRecord) -> bool:
    return (
        isinstance(record, ConfigRecord)
        and (record.resource_type, record.resource_name, record.name) == (ResourceType.BROKER, "", MIN_ISR)
        and record.value is not None
    )


def cluster_min_isr(min_isr: int) -> ConfigRecord:
    """Return the record that sets ``min.insync.replicas`` for the cluster."""
    return ConfigRecord(
        resource_type=int(ResourceType.BROKER), resource_name="", name=MIN_ISR, value=str(min_isr)
    )


def gates_catalog(supported: Collection[FeatureRange]) -> bool:
    """Return whether records of the remote catalog need a feature level."""
    return any(feature.name == CATALOG_VERSION for feature in supported)


def has_catalog(image: MetadataImage) -> bool:
    """Return whether the cluster's feature level allows records of the remote catalog."""
    return image.features.get(CATALOG_VERSION, 0) > 0
