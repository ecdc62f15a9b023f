"""The canonical messages of UpdateFeatures: the fields of the newest version and of older ones. [P]

Version 0 has a flag that allows a downgrade; later versions name the kind of change (KIP-584, KIP-778).
Up to version 1 each feature has a result of its own; from version 2 on all changes are made, or none.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field

from kio.schema.update_features.v1.response import UpdatableFeatureResult
from kio.schema.update_features.v2 import request, response

__all__ = ["FeatureUpdateKey", "UpdatableFeatureResult", "UpdateFeaturesRequest", "UpdateFeaturesResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdateKey(request.FeatureUpdateKey):
    allow_downgrade: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest(request.UpdateFeaturesRequest):
    feature_updates: tuple[FeatureUpdateKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse(response.UpdateFeaturesResponse):
    results: tuple[UpdatableFeatureResult, ...] = ()
