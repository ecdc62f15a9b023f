"""What `firn pipeline archive` asks of the source."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from service.base.errors import ConfigError
from service.cli.main import build_parser
from service.pipelines.archive_options import by_id, check_arguments, stream_options
from service.spark.plan.archive import ChosenPartition
from service.spark.stream.options import parse_stream

FLIGHTS, PLANES = UUID(int=1), UUID(int=2)
GIVEN = {"url": "file:///x", "subscribe": "flights"}


def options(*arguments: str, can_limit: bool = True, **given: str) -> dict[str, str]:
    args = build_parser().parse_args(["pipeline", "archive", "file:///x", "/out", *arguments])
    return stream_options(args, GIVEN | given, can_limit=can_limit)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--values", "avro"), "needs --schema"),
        (("--schema", "x.ddl"), "says nothing without --values"),
        (("--values", "json", "--confluent-header"), "says nothing without --values avro"),
        (("--format", "iceberg"), "needs --checkpoint"),
    ],
)
def test_arguments_that_make_no_sense_together_are_refused(arguments: tuple[str, ...], said: str) -> None:
    args = build_parser().parse_args(["pipeline", "archive", "file:///x", "/out", *arguments])
    with pytest.raises(ConfigError, match=said):
        check_arguments(args)


def test_a_stream_begins_at_the_beginning_in_batches_of_16g() -> None:
    assert options() == GIVEN | {
        "includeHeaders": "false",
        "startingOffsets": "earliest",
        "maxBytesPerTrigger": "16g",
    }


def test_what_is_given_counts_however_it_is_spelt() -> None:
    found = options("--headers", STARTINGTIMESTAMP="5", maxoffsetspertrigger="10", includeheaders="FALSE")
    assert found == GIVEN | {
        "startingTimestamp": "5",
        "maxOffsetsPerTrigger": "10",
        "includeHeaders": "FALSE",
    }
    assert parse_stream(found).max_offsets == 10


def test_without_limits_in_spark_there_is_one_only_where_it_is_asked_for() -> None:
    assert "maxBytesPerTrigger" not in options(can_limit=False)
    assert options("--batch-bytes", "4g", can_limit=False)["maxBytesPerTrigger"] == "4g"


def test_topics_are_followed_by_id_and_offsets_with_them() -> None:
    chosen = [
        ChosenPartition("flights", FLIGHTS, 0, "flights"),
        ChosenPartition("flights", FLIGHTS, 1, "flights"),
        ChosenPartition("planes", PLANES, 0, str(PLANES)),
    ]
    starting = {"flights": {"0": 5, "1": -2}, str(PLANES): {"0": 7}}
    found = by_id({"url": "x", "subscribe": "flights,…", "startingOffsets": json.dumps(starting)}, chosen)
    assert found.keys() == {"url", "subscribe", "startingOffsets"}
    assert found["subscribe"] == f"{FLIGHTS},{PLANES}"
    assert json.loads(found["startingOffsets"]) == {
        str(FLIGHTS): {"0": 5, "1": -2},
        str(PLANES): {"0": 7},
    }


def test_of_assigned_partitions_no_others_are_read() -> None:
    chosen = [ChosenPartition("flights", FLIGHTS, 3, "flights")]
    found = by_id({"url": "x", "assign": '{"flights":[3]}', "startingOffsets": "earliest"}, chosen)
    assert json.loads(found.pop("assign")) == {str(FLIGHTS): [3]}
    assert found == {"url": "x", "startingOffsets": "earliest"}
