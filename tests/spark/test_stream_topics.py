"""Streams whose topics are deleted and made again: refused, or told and begun anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.growing import Growing, each_once
from tests.spark.test_streaming import Stream
from tests.support.processes import wait_until

errors = pytest.importorskip(
    "pyspark.errors", reason="pyspark is not installed: pip install -e '.[test,spark]'"
)


def listed_id(grown: Growing, topic: str) -> str:
    """Its id, as `topics.json` has it; empty where it is not listed."""
    from service.remote.keys import TOPICS_KEY
    from service.remote.manifest_codec import decode_topics

    rows = decode_topics(grown.store.read(TOPICS_KEY)).topics
    return next((str(row.topic_id) for row in rows if row.name == topic), "")


def test_a_topic_made_again_is_refused_or_begun_anew_while_the_stream_runs_and_when_it_is_restarted(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("again")
    ends = grown.append("again", 700)
    options = grown.options("again", startingOffsets="earliest")
    careful = Stream(spark, tmp_path / "careful", options).start()
    careless = Stream(spark, tmp_path / "careless", {**options, "failOnDataLoss": "false"}).start()
    by_id = Stream(spark, tmp_path / "by-id", {**options, "subscribe": listed_id(grown, "again")}).run()
    for stream in (careful, careless, by_id):
        wait_until(f"{ends}", lambda one=stream: len(one.pairs) == sum(ends.values()))  # type: ignore[misc]
    old = listed_id(grown, "again")

    grown.admin.delete("again")
    wait_until("the topic to be gone", lambda: not listed_id(grown, "again"))
    grown.counts["again"] = 0
    grown.topic("again")
    # Less than there was, so that nothing but its id tells the new one from the old one.
    after = grown.append("again", 350)
    new = listed_id(grown, "again")
    assert new != old

    wait_until("the careful one to end", lambda: careful.query.exception() is not None)
    assert len(careful.pairs) == sum(ends.values())
    careless.wait_for({0: ends[0] + after[0], 1: ends[1] + after[1]})
    careless.stop()
    each_once(careless.pairs[sum(ends.values()) :], after)

    with pytest.raises(errors.StreamingQueryException, match="topic again is another one now") as told:
        Stream(spark, tmp_path / "careful", options).run()
    assert old in str(told.value)
    assert new in str(told.value)
    with pytest.raises(errors.StreamingQueryException, match=r"again-0 \(read up to"):
        Stream(spark, tmp_path / "by-id", by_id.options).run()
    # What has been told once is done with: the new topic has taken the place of the old one.
    each_once(Stream(spark, tmp_path / "careful", {**options, "failOnDataLoss": "false"}).run().pairs, after)
    assert Stream(spark, tmp_path / "careful", options).run().pairs == []
    assert Stream(spark, tmp_path / "careless", options).run().pairs == []
