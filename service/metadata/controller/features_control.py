"""Changes of finalized features (Apache Kafka ``FeatureControlManager``). [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.decision import Decision, decided
from service.metadata.features import supported_features
from service.metadata.image import FeatureRange, MetadataImage
from service.metadata.records import FeatureLevelRecord

_NOT_SUPPORTED: Final = FeatureRange("", 0, 0)


class UpgradeType(IntEnum):
    """Kafka's ``FeatureUpdate.UpgradeType``."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


UPGRADE_TYPES: Final = frozenset(UpgradeType)


class FeatureUpdate(NamedTuple):
    """One feature to another level; `upgrade_type` is the number on the wire and may be unknown."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def update_features(
    image: MetadataImage, updates: Sequence[FeatureUpdate], *, node_id: int, validate_only: bool = False
) -> Decision[None]:
    """Change all of them, or none. Raises `RequestError` INVALID_UPDATE_VERSION, which names the first that
    cannot be.
    """
    by_name = {update.name: update for update in updates}  # of several the last counts
    records = []
    for update in by_name.values():
        why = _why_not(image, update, node_id)
        if why is not None:
            raise RequestError(ErrorCode.invalid_update_version, why)
        records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    return decided(() if validate_only else records, None)


def _why_not(image: MetadataImage, update: FeatureUpdate, node_id: int) -> str | None:
    reason = _reason(image, update, node_id)
    if reason is None:
        return None
    return f"Invalid update version {update.level} for feature {update.name}. {reason}"


def _reason(image: MetadataImage, update: FeatureUpdate, node_id: int) -> str | None:
    name, level, kind = update
    if kind not in UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    for what, ranges in _nodes(image, node_id):
        known = ranges.get(name, _NOT_SUPPORTED)
        if not known.min_level <= level <= known.max_level:
            if known.max_level == 0:
                return f"{what} does not support this feature."
            return f"{what} only supports versions {known.min_level}-{known.max_level}"
    current = image.features.get(name, 0)
    if level < current and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if level > current and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _nodes(image: MetadataImage, node_id: int) -> Iterable[tuple[str, Mapping[str, FeatureRange]]]:
    """Who has to support a level: this controller first, then brokers, then the other controllers."""
    yield f"Local controller {node_id}", {one.name: one for one in supported_features()}
    for broker in image.brokers.values():
        if broker.id == node_id:
            continue  # this process: what it registered as before is over
        yield f"Broker {broker.id}", {one.name: one for one in broker.features}
    for controller in image.controllers.values():
        if controller.id != node_id:
            yield f"Controller {controller.id}", {one.name: one for one in controller.features}
