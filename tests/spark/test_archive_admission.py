"""`firn pipeline archive` again on the checkpoint of an earlier run: what may differ, and what may not."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service.cli.main import main
from service.remote.format.documents import seal
from service.remote.format.keys import TOPICS_KEY
from tests.spark.growing import Growing
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(600)


class Lake(NamedTuple):
    """An output folder, written by runs in the tests' session."""

    spark: Any
    url: str
    output: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what was said."""
        self.capsys.readouterr()
        code = main(["pipeline", "archive", self.url, str(self.output), *arguments])
        return code, self.capsys.readouterr().err

    def refused(self, *arguments: str) -> str:
        before = self.files()
        code, said = self.run(*arguments)
        assert (code, said.count("\n")) == (1, 1), said
        assert self.files() == before
        return said

    def files(self) -> set[str]:
        return {str(path) for path in self.output.rglob("*") if not path.name.startswith(".")}

    def counts(self) -> dict[str, int]:
        """Rows by topic, after proving that none came twice."""
        rows = self.spark.read.parquet(str(self.output)).select("topic", "topic_id", "partition", "offset")
        found = [tuple(row) for row in rows.collect()]
        assert len(found) == len(set(found))
        return dict(Counter(row[0] for row in found))

    def topics_json(self, names: set[str]) -> str:
        """Leaves only these in the archive's list of topics; returns what it was."""
        path = Path(self.url.removeprefix("file://")) / TOPICS_KEY
        before = path.read_text("utf-8")
        document = json.loads(before)
        document["topics"] = [row for row in document["topics"] if row["name"] in names]
        del document["document_crc32c"]
        path.write_bytes(seal(document))
        return before


@pytest.fixture
def lake(spark: Any, grown: Growing, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lake:
    return Lake(spark, grown.store.url, tmp_path / "lake", capsys)


def filled(grown: Growing, topic: str, count: int = 600) -> int:
    """A topic with so many more records in each partition; returns how many are archived."""
    if topic not in grown.counts:
        grown.topic(topic)
    return sum(grown.append(topic, count).values())


def test_a_job_that_would_write_other_rows_is_refused_with_both_values(
    lake: Lake, grown: Growing, tmp_path: Path
) -> None:
    count = filled(grown, "same")
    schema = tmp_path / "schema.ddl"
    schema.write_text("a int", "utf-8")
    topics = ("--topics", "same")
    assert lake.run(*topics, "--from", "2000-01-01")[0] == 0
    json_values = (*topics, "--values", "json", "--schema", str(schema))
    assert "values: raw there, json here" in lake.refused(*json_values)
    assert "includeHeaders: false there, true here" in lake.refused(*topics, "--headers")
    committed = "isolationLevel: read_uncommitted there, read_committed here"
    assert committed in lake.refused(*topics, "--option", "isolationLevel=read_committed")
    other = lake.refused(*topics, "--from", "2013-01-01")
    assert "startingTimestamp: 946684800000 there, 1356998400000 here" in other
    # What decides only how the rows come may change, and where it started need not be said again.
    free = ("--batch-bytes", "64k", "--option", "fetchBytes=64k", "--option", "failOnDataLoss=true")
    count = filled(grown, "same")
    assert lake.run(*topics, *free)[0] == 0
    assert lake.counts() == {"same": count}


@pytest.mark.thorough
def test_fewer_topics_are_refused_so_that_none_is_archived_again_later(lake: Lake, grown: Growing) -> None:
    counts = {name: filled(grown, name) for name in ("fewer-a", "fewer-b")}
    assert lake.run("--topics", "fewer-a,fewer-b")[0] == 0
    assert "topics: fewer-a, fewer-b there, fewer-a here" in lake.refused("--topics", "fewer-a")
    assert "partitions of fewer-a: none there, [0] here" in lake.refused(
        "--option", 'assign={"fewer-a":[0],"fewer-b":[0,1]}'
    )
    assert lake.run("--pattern", "fewer-.*")[0] == 0
    assert lake.counts() == counts


def test_a_topic_that_is_away_for_a_run_is_named_and_goes_on_where_it_was(lake: Lake, grown: Growing) -> None:
    counts = {name: filled(grown, name) for name in ("away-a", "away-b")}
    topics = ("--topics", "away-a,away-b")
    assert lake.run(*topics)[0] == 0
    before = lake.topics_json({"away-a"})
    try:
        gone = "topic away-b (id "
        assert f"firn pipeline: {gone}" in lake.refused(*topics)
        code, said = lake.run(*topics, "--on-missing-topic", "skip")
        assert code == 0, said
        assert f"archive: {gone}" in said
    finally:
        (Path(lake.url.removeprefix("file://")) / TOPICS_KEY).write_text(before, "utf-8")
    counts["away-b"] = filled(grown, "away-b")
    code, said = lake.run(*topics)
    assert code == 0, said
    assert lake.counts() == counts


def test_new_topics_of_a_pattern_are_taken_up_and_a_deleted_one_is_not_confused_with_its_successor(
    lake: Lake, grown: Growing
) -> None:
    counts = {"new-a": filled(grown, "new-a")}
    pattern = ("--pattern", "new-.*")
    assert lake.run(*pattern)[0] == 0
    counts["new-b"] = filled(grown, "new-b")
    code, said = lake.run(*pattern)
    assert code == 0, said
    assert said.count("archive: topic new-b (id ") == said.count("is new and is read from its beginning") == 1
    assert lake.counts() == counts
    topics = Path(lake.url.removeprefix("file://")) / TOPICS_KEY
    grown.admin.delete("new-a")
    wait_until("the topic to leave the archive", lambda: '"new-a"' not in topics.read_text("utf-8"))
    del grown.counts["new-a"]
    again = filled(grown, "new-a", 900)
    wait_until("the new topic to be listed", lambda: '"new-a"' in topics.read_text("utf-8"))
    assert "it was deleted, and another topic has its name now" in lake.refused(*pattern)
    code, said = lake.run(*pattern, "--on-missing-topic", "skip")
    assert code == 0, said
    assert "archive: topic new-a (id " in said
    assert lake.counts() == {"new-a": counts["new-a"] + again, "new-b": counts["new-b"]}


@pytest.mark.thorough
def test_a_checkpoint_of_before_the_document_is_adopted_where_it_fits(lake: Lake, grown: Growing) -> None:
    counts = {name: filled(grown, name) for name in ("old-a", "old-b")}
    topics = ("--topics", "old-a,old-b")
    assert lake.run(*topics)[0] == 0
    shutil.rmtree(lake.output / "_checkpoint" / "firn_job")
    assert "topics: old-a, old-b there, old-a here" in lake.refused("--topics", "old-a")
    assert "headers: none there, array<" in lake.refused(*topics, "--headers")
    counts["old-b"] = filled(grown, "old-b")
    code, said = lake.run(*topics)
    assert code == 0, said
    assert "has no job document" in said
    assert lake.counts() == counts
    assert "includeHeaders: false there, true here" in lake.refused(*topics, "--headers")


def test_one_checkpoint_does_not_fill_two_outputs(lake: Lake, grown: Growing, tmp_path: Path) -> None:
    filled(grown, "one")
    place = ("--topics", "one", "--checkpoint", str(tmp_path / "checkpoint"))
    assert lake.run(*place)[0] == 0
    other = lake._replace(output=tmp_path / "other")
    assert f"output: file:{lake.output} there, file:{other.output} here" in other.refused(*place)
