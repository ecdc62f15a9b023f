"""Records that a restored cluster begins with: each field of the image is taken over, or replaced."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from service.inspect.restore_plan import PlanFacts, RestorePlan, restore_plan
from service.inspect.restore_records import HeirNumbers, Placement, heir_records
from service.metadata.delta import MetadataDelta
from service.metadata.features import cluster_features
from service.metadata.image import MetadataImage, PartitionImage, RecoveredTopic, RestoredTail
from service.metadata.persistent import PersistentMap
from service.remote.catalog import CatalogEntry, Erasure
from service.remote.format.coverage import Coverage
from service.remote.format.cut_codec import Cut, CutRef
from service.remote.format.metadata_ref import MetadataRef
from tests.support.cut_archives import row
from tests.unit.metadata.test_snapshot_fields import FIELDS, FULL

TOPIC = UUID(int=7)
REF = CutRef(3, "cut/3", 1, 1, 1, True, True)
ENTRY = CatalogEntry(9, "m9", 8, 0, 5, 1, 10)
NUMBERS = HeirNumbers(1_000_000_007, 8, UUID(int=88))
IMAGE = replace(FULL, restored_tails=PersistentMap())
ERASURE = Erasure(UUID(int=71), "erase/71", 90, 5, 3, (UUID(int=6), TOPIC), 40)
"""of topics of which one comes back"""
LISTED = (ERASURE._replace(done_ms=80), ERASURE._replace(id=UUID(int=72), topics=(UUID(int=6),)))

TAKEN_OVER = {"acls", "scram", "tokens", "client_quotas", "tombstones", "configs"}
REPLACED = {
    "features": {"firn.catalog.version": 3},  # the lost cluster's "a.7" is of software that is not here
    "brokers": {},
    "controllers": {},
    "next_producer_id": 1_000_000_007,
    "remote": {(TOPIC, 0): ENTRY},
    "life": 8,
    "life_id": UUID(int=88),
    "recovered": {TOPIC: RecoveredTopic((), settings_unknown=True)},
    "restored_tails": {(TOPIC, 0): RestoredTail(9, 9, 1_000_009, "cut/3", "")},
    "rewrites": {},
    "erasures": {ERASURE.id: ERASURE._replace(topics=(TOPIC,), is_restored=True)},
    "erased": {},
}
OF_THE_LOG = {"offset", "epoch", "timestamp_ms"}


def plan() -> RestorePlan:
    metadata = MetadataRef("m", 5, 1, 1, 1)
    cut = Cut("lost", 3, 1, True, metadata, 5, 1, (), {TOPIC: (row(9, saved=0, leader_epoch=3),)})
    facts = PlanFacts("lost", REF, cut, IMAGE, {}, {(TOPIC, 0): 40}, {}, 1)
    return restore_plan(facts, lambda place, first, end, epoch: Coverage((), first))


def heir(*, is_clone: bool = False) -> MetadataImage:
    placement = Placement((4, 5), None, fits=True)
    records = heir_records(
        IMAGE,
        plan(),
        placement,
        NUMBERS,
        {(TOPIC, 0): ENTRY},
        cluster_features(),
        is_clone=is_clone,
        erasures=LISTED,
    )
    return MetadataDelta(MetadataImage()).replay_all(records).build(1, 1, 1)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_taken_over_or_replaced(name: str) -> None:
    found = getattr(heir(), name)
    if name in TAKEN_OVER:
        assert found == getattr(IMAGE, name)
    elif name in REPLACED:
        wanted = REPLACED[name]
        assert (dict(found) if isinstance(wanted, dict) else found) == wanted
    else:
        assert name in {*OF_THE_LOG, "topics_by_id"}, "say what an heir has of it"


def test_topics_have_their_ids_and_are_on_the_heirs_brokers() -> None:
    (topic,) = heir().topics_by_id.values()
    assert (topic.name, topic.id) == ("a.7", TOPIC)
    (partition,) = topic.partitions.values()
    none = UUID(int=0)
    assert partition._replace(replicas=(4,), isr=(4,)) == PartitionImage((4,), (4,), -1, 1_040, 0, (none,))
    assert partition.replicas in ((4,), (5,))
    assert partition.isr == partition.replicas


def test_a_clone_has_nothing_of_deleted_topics() -> None:
    assert IMAGE.tombstones
    assert not heir(is_clone=True).tombstones
