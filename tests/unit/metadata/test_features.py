"""Features: what a new cluster is set to, and how it goes to other levels."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.features_control import FeatureUpdate, UpgradeType, update_features
from service.metadata.image import MetadataImage
from tests.support.bootstrap import bootstrap_frames


def image_of(**features: int) -> MetadataImage:
    return MetadataImage(features={name.replace("_", "."): level for name, level in features.items()})


def refusal(image: MetadataImage, *updates: FeatureUpdate) -> str:
    with pytest.raises(RequestError) as caught:
        update_features(image, updates, node_id=1)
    assert caught.value.code is ErrorCode.invalid_update_version
    return str(caught.value)


def test_a_new_cluster_has_both_protocols_of_groups_and_of_transactions() -> None:
    levels = {
        frame.record.name: frame.record.feature_level
        for frame in bootstrap_frames()
        if hasattr(frame.record, "feature_level")
    }
    assert levels == {"metadata.version": 30, "group.version": 1, "transaction.version": 2}


def test_an_older_cluster_is_raised_and_a_raised_one_lowered() -> None:
    up = update_features(image_of(metadata_version=30), [FeatureUpdate("group.version", 1)], node_id=1)
    assert [(one.record.name, one.record.feature_level) for one in up.frames] == [("group.version", 1)]
    new = image_of(metadata_version=30, group_version=1)
    for kind in (UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        down = update_features(new, [FeatureUpdate("group.version", 0, kind)], node_id=1)
        assert [one.record.feature_level for one in down.frames] == [0]
    only = update_features(new, [FeatureUpdate("group.version", 1)], node_id=1, validate_only=True)
    assert only.frames == ()


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate("group.version", 2), "Local controller 1 only supports versions 0-1"),
        (FeatureUpdate("group.version", -1), "A feature version cannot be less than 0."),
        (FeatureUpdate("group.version", 1, 9), "The controller does not support the given upgrade type."),
        (FeatureUpdate("share.version", 1), "Local controller 1 does not support this feature."),
        (FeatureUpdate("metadata.version", 29, 2), "Local controller 1 only supports versions 30-30"),
        (FeatureUpdate("group.version", 0), "Can't downgrade the version of this feature without"),
    ],
)
def test_levels_that_cannot_be_are_refused_with_the_reason(update: FeatureUpdate, reason: str) -> None:
    image = image_of(metadata_version=30, group_version=1)
    assert f"Invalid update version {update.level} for feature {update.name}. {reason}" in refusal(
        image, update
    )


def test_a_downgrade_does_not_go_up() -> None:
    image = image_of(metadata_version=30)
    update = FeatureUpdate("group.version", 1, UpgradeType.SAFE_DOWNGRADE)
    assert "Can't downgrade to a newer version." in refusal(image, update)


def test_all_features_change_or_none() -> None:
    image = image_of(metadata_version=30)
    assert "share.version" in refusal(
        image, FeatureUpdate("group.version", 1), FeatureUpdate("share.version", 1)
    )
