"""Streams whose topics are deleted and created again: refused, or restarted with a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import errors

from tests.spark.growing import Growing, each_once
from tests.spark.test_streaming import Stream
from tests.support.processes import wait_until


def listed_id(grown: Growing, topic: str) -> str:
    """Its id, as `topics.json` has it; empty where it is not listed."""
    from service.remote.format.keys import TOPICS_KEY
    from service.remote.format.manifest_codec import decode_topics

    rows = decode_topics(grown.store.read(TOPICS_KEY)).topics
    return next((str(row.topic_id) for row in rows if row.name == topic), "")


def made_again(grown: Growing, topic: str) -> dict[int, int]:
    """Deleted, and made again with less than there was: nothing but its id tells the two apart."""
    grown.admin.delete(topic)
    wait_until("the topic to be gone", lambda: not listed_id(grown, topic))
    grown.counts[topic] = 0
    grown.topic(topic)
    return grown.append(topic, 350)


def test_a_recreated_topic_ends_a_running_stream_or_restarts_it(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("again")
    before = grown.append("again", 700)
    options = grown.options("again", startingOffsets="earliest")
    careful = Stream(spark, tmp_path / "careful", options).start()
    careless = Stream(spark, tmp_path / "careless", {**options, "failOnDataLoss": "false"}).start()
    careful.wait_for(before)
    careless.wait_for(before)
    after = made_again(grown, "again")
    wait_until("the careful one to end", lambda: careful.query.exception() is not None)
    assert len(careful.pairs) == sum(before.values())
    careless.wait_for({0: before[0] + after[0], 1: before[1] + after[1]})
    careless.stop()
    each_once(careless.pairs[sum(before.values()) :], after)


def test_a_topic_recreated_while_the_stream_was_down_is_refused_or_restarted(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("later")
    before = grown.append("later", 700)
    options = grown.options("later", startingOffsets="earliest")
    each_once(Stream(spark, tmp_path, options).run().pairs, before)
    old = listed_id(grown, "later")
    after = made_again(grown, "later")
    with pytest.raises(errors.StreamingQueryException, match="topic later is another one now") as told:
        Stream(spark, tmp_path, options).run()
    assert old in str(told.value)
    assert listed_id(grown, "later") in str(told.value)
    each_once(Stream(spark, tmp_path, {**options, "failOnDataLoss": "false"}).run().pairs, after)
    # What has been told is done with: the new topic has taken the place of the old one.
    assert Stream(spark, tmp_path, options).run().pairs == []
