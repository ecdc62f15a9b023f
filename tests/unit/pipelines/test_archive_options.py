"""Options that `firn pipeline archive` passes to the source."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from service.base.errors import ConfigError
from service.cli.main import build_parser
from service.pipelines.archive_options import by_id, check_arguments, stream_options, without_gone
from service.spark.options import Assign, Subscribe, SubscribePattern
from service.spark.plan.snapshots import ChosenPartition
from service.spark.stream.options import parse_stream

CONFLUENT = ("--values", "avro", "--confluent-header")
FLIGHTS, PLANES = UUID(int=1), UUID(int=2)
GIVEN = {"url": "file:///x", "subscribe": "flights"}


def options(*arguments: str, can_limit: bool = True, **given: str) -> dict[str, str]:
    args = build_parser("pipeline").parse_args(["pipeline", "archive", "file:///x", "/out", *arguments])
    return stream_options(args, GIVEN | given, can_limit=can_limit)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--values", "avro"), "needs --schema"),
        (("--schema", "x.ddl"), "has no effect without --values"),
        (("--values", "json", "--confluent-header"), "has no effect without --values avro"),
        (("--format", "iceberg"), "needs --checkpoint"),
        ((*CONFLUENT, "--schema", "x.avsc"), "give this schema's id: --schema ID=FILE"),
        (CONFLUENT, "needs --schema ID=FILE or --schema-registry URL"),
        ((*CONFLUENT, "--schema", "7=a", "--schema", "7=b"), "given twice"),
        ((*CONFLUENT, "--schema", "4294967295=a"), "not an id"),
        (("--values", "avro", "--schema", "7=x.avsc"), "ID=FILE has no effect without --confluent-header"),
        (("--values", "avro", "--schema", "a", "--schema", "b"), "given 2 times: a, b"),
        (("--values", "json", "--schema-registry", "http://x"), "--schema-registry has no effect without"),
        (
            ("--values", "avro", "--schema", "a", "--reader-schema", "7"),
            "--reader-schema has no effect without",
        ),
    ],
)
def test_arguments_that_make_no_sense_together_are_refused(arguments: tuple[str, ...], said: str) -> None:
    args = build_parser("pipeline").parse_args(["pipeline", "archive", "file:///x", "/out", *arguments])
    with pytest.raises(ConfigError, match=said):
        check_arguments(args)


def test_a_stream_begins_at_the_beginning_in_batches_of_16g() -> None:
    assert options() == GIVEN | {
        "includeHeaders": "false",
        "startingOffsets": "earliest",
        "maxBytesPerTrigger": "16g",
    }


def test_options_are_matched_without_regard_to_case() -> None:
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


def test_topics_that_are_gone_are_left_out_and_their_successors_are_not() -> None:
    gone = {"id-1": "flights", "id-2": "planes"}
    assert without_gone(Subscribe(("flights", "id-2", "trains")), gone, ["trains"]) == Subscribe(("trains",))
    assert without_gone(Subscribe(("flights",)), gone, ["flights"]) == Subscribe(("flights",))
    assert without_gone(Assign({"flights": (0,), "trains": (1,)}), gone, ["trains"]) == Assign(
        {"trains": (1,)}
    )
    assert without_gone(SubscribePattern(".*"), gone, []) == SubscribePattern(".*")


def test_only_assigned_partitions_are_read() -> None:
    chosen = [ChosenPartition("flights", FLIGHTS, 3, "flights")]
    found = by_id({"url": "x", "assign": '{"flights":[3]}', "startingOffsets": "earliest"}, chosen)
    assert json.loads(found.pop("assign")) == {str(FLIGHTS): [3]}
    assert found == {"url": "x", "startingOffsets": "earliest"}
