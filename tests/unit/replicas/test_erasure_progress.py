"""Orders that are over somewhere: in all logs, or in the bucket."""

from __future__ import annotations

from service.base.steps import at_once
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.image_frames import erased_records, erasure_record
from service.metadata.records import MetadataRecord, RemoveErasureRecord
from service.remote.catalog import IN_BUCKET, Erasure
from service.replicas.erasure_progress import ErasedLogs, topics_over_in_bucket
from tests.support.compaction import START_MS
from tests.support.one_of_three import ME, OTHER, TOPIC, changed, directory, partition, registered, topic
from tests.unit.hot.erasures import ORDER

ERASURE = Erasure(ORDER, f"erase/{ORDER}.json.gz", 100, 1, 1, (TOPIC,), START_MS)


def told(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    delta = MetadataDelta(image).replay_all(records)
    return delta.build(image.offset + len(records), 1, START_MS)


def begun() -> MetadataImage:
    return told(
        MetadataImage(), registered(ME), registered(OTHER), topic(),
        *(partition(n, ME, replicas=(ME, OTHER)) for n in range(2)), erasure_record(ERASURE),
    )  # fmt: skip


def noted(image: MetadataImage, number: int, *brokers: int) -> MetadataImage:
    return told(image, *erased_records(ORDER, [((TOPIC, number), brokers)]))


def test_an_order_is_over_once_every_replica_of_every_partition_has_told() -> None:
    image = begun()
    logs = ErasedLogs(lambda: image)
    image = noted(image, 0, ME, OTHER)
    assert at_once(logs.find()) == frozenset()
    image = noted(image, 1, ME)
    assert at_once(logs.find()) == frozenset()
    image = noted(image, 1, IN_BUCKET)
    assert at_once(logs.find()) == frozenset()
    image = noted(image, 1, OTHER)
    assert at_once(logs.find()) == {ORDER}
    image = told(image, changed(1, replicas=(ME,), isr=(ME,), directories=(directory(ME),)))
    image = told(
        image, changed(1, replicas=(ME, OTHER), isr=(ME,), directories=(directory(ME), directory(OTHER)))
    )
    assert at_once(logs.find()) == {ORDER}, "a replica that has come since gets what others have"
    image = told(image, RemoveErasureRecord(id=ORDER))
    assert at_once(logs.find()) == frozenset()


def test_the_cache_hears_of_topics_whose_orders_are_done_or_gone() -> None:
    image = begun()
    done = told(image, erasure_record(ERASURE._replace(done_ms=START_MS + 5)))
    gone = told(done, RemoveErasureRecord(id=ORDER))
    assert topics_over_in_bucket(MetadataImage(), image) == frozenset()
    assert topics_over_in_bucket(image, noted(image, 0, ME)) == frozenset()
    assert topics_over_in_bucket(image, done) == {TOPIC}
    assert topics_over_in_bucket(done, done) == frozenset()
    assert topics_over_in_bucket(done, gone) == {TOPIC}
