"""Orders to erase keys of a bucket that a node adopts: they are carried out anew, whatever its disk knows."""

from __future__ import annotations

from uuid import UUID

from service.metadata.controller.adoption_control import BucketContent, adopt
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.image_frames import erased_records, erasure_record
from service.remote.catalog import IN_BUCKET, Erasure
from tests.unit.metadata.test_adoption import ID, LIFE, entry, known, topic

GONE, OPEN = UUID(int=91), UUID(int=92)


def order(erasure_id: UUID, *topics: UUID, done_ms: int = -1) -> Erasure:
    return Erasure(erasure_id, f"erase/{erasure_id}.json.gz", 10, 3, 1, topics, 5, done_ms)


def adopted(image: MetadataImage, *erasures: Erasure) -> MetadataImage:
    found = BucketContent([topic()], None, False, -1, 0, erasures=erasures)
    frames = adopt(image, found, node_id=1, life_id=LIFE).frames
    return MetadataDelta(image).replay_all(frame.record for frame in frames).build(100, 1, 0)


def test_an_order_of_the_bucket_is_open_for_the_topics_that_come_back() -> None:
    image = adopted(MetadataImage(), order(OPEN, ID, UUID(int=99), done_ms=8), order(GONE, UUID(int=99)))
    assert dict(image.erasures) == {OPEN: order(OPEN, ID)._replace(is_restored=True)}


def test_a_disk_from_before_has_erased_nothing() -> None:
    own = known(entry(4))
    notes = erased_records(OPEN, [((ID, 0), frozenset({1, IN_BUCKET}))])
    records = [erasure_record(order(OPEN, ID)), *notes, erasure_record(order(GONE, ID))]
    image = adopted(MetadataDelta(own).replay_all(records).build(20, 1, 0), order(OPEN, ID))
    assert set(image.erasures) == {OPEN}, "one that the bucket lacks is gone"
    assert image.erasures[OPEN].is_restored
    assert not image.erased.get(OPEN)
