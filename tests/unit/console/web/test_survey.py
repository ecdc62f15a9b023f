"""A bucket's listing summed up: topics, days, what nothing names, what it costs."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import ConfigError
from service.console.web.costs import DAY_MS, PART_BYTES, Prices, prices, write_requests
from service.console.web.survey import ListedObject, PartitionObjects, Survey, by_day
from service.remote.format.keys import ManifestKey, SegmentKey, head_key, manifest_key, segment_key
from service.remote.stores.obstore_store import StoreOptions

TOPIC, OTHER = UUID(int=7), UUID(int=8)
NOW = 100 * DAY_MS
HOUR_MS = 3_600_000


def segment(topic: UUID, partition: int, base: int) -> str:
    return segment_key(SegmentKey(topic, partition, base, base + 9, 0, UUID(int=base + 1)))


def listing() -> list[ListedObject]:
    """Two partitions of a topic that is known, one of a topic that is not, and what belongs to nobody."""
    keys = [
        ("cluster.json", 100, NOW),
        (head_key(TOPIC, 0), 50, NOW),
        (segment(TOPIC, 0, 0), 1000, NOW - 3 * DAY_MS),
        (segment(TOPIC, 0, 10), 2000, NOW - DAY_MS),
        (segment(TOPIC, 0, 20), 4000, NOW - 10),
        (manifest_key(ManifestKey(TOPIC, 0, 1, 0, UUID(int=3))), 70, NOW),
        (segment(TOPIC, 1, 0), 500, NOW - DAY_MS),
        (segment(OTHER, 0, 0), 10, NOW - DAY_MS),
        ("somebody/else", 5, NOW),
    ]
    return [ListedObject(*one) for one in sorted(keys)]


def surveyed() -> tuple[Survey, list[PartitionObjects]]:
    survey = Survey({TOPIC: "orders"}, NOW, HOUR_MS)
    groups = list(survey.add(listing()))
    if (last := survey.end()) is not None:
        groups.append(last)
    return survey, groups


def test_topics_are_summed_up_by_partition_and_day() -> None:
    survey, groups = surveyed()
    found = survey.findings
    assert [(group.topic_id, group.partition) for group in groups] == [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
    topic = found.topics[str(TOPIC)]
    assert (topic.name, topic.partitions, topic.segments, topic.segment_bytes) == ("orders", 2, 4, 7500)
    assert (topic.other_objects, topic.other_bytes) == (2, 120)
    assert found.topics[str(OTHER)].name is None
    assert (found.objects, found.size, found.foreign_objects) == (9, 7735, 1)
    days = by_day([topic], NOW)
    assert [(day.added, day.held) for day in days[:4]] == [(120, 7620), (6500, 7500), (0, 1000), (1000, 1000)]


def test_an_unreferenced_object_is_an_orphan_after_the_grace() -> None:
    survey, groups = surveyed()
    for group in groups:
        survey.judged(group, {segment(TOPIC, 0, 0), segment(TOPIC, 1, 0)})
    found = survey.findings
    assert [one.key for one in found.orphans] == [segment(TOPIC, 0, 10), segment(OTHER, 0, 0)]
    assert (found.orphan_count, found.orphan_bytes, found.young_count) == (2, 2010, 1)


def test_prices_are_per_class_month_and_thousand() -> None:
    found = prices(
        [("storage-gb-month", "0.03"), ("storage-gb-month.COLD", "0.003"), ("write-1000", "1")], "EUR"
    )
    gb = 2**30  # as S3 bills it
    assert found.month({"STANDARD": 2 * gb, "COLD": gb}) == pytest.approx(0.063)
    assert found.day({"STANDARD": gb}) == pytest.approx(0.001)
    assert found.unpriced({"STANDARD": gb, "COLD": gb, "GLACIER_IR": 1, "ONEZONE_IA": 0}) == ["GLACIER_IR"]
    assert found.writes(2500) == pytest.approx(2.5)
    assert found.currency == "EUR"
    assert Prices().reads(1000) == pytest.approx(0.0004)


@pytest.mark.parametrize(
    "pair", [("nothing", "1"), ("write-1000", "x"), ("write-1000", "-1"), ("write-1000", "nan")]
)
def test_prices_that_are_none_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        prices([pair])


def test_a_part_is_what_the_store_makes_of_it() -> None:
    assert StoreOptions().part_bytes == PART_BYTES


def test_large_objects_take_a_request_for_each_part() -> None:
    assert write_requests(PART_BYTES) == 1
    assert write_requests(PART_BYTES + 1) == 4
