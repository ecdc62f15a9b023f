"""Settings of a topic: overrides, tiering, throttled replicas."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.config.settings import BrokerConfig, topic_config, validate_topic_change
from tests.unit.config.refusals import PLAIN, TIERED, refused, topic_refused


class TestTopics:
    def test_overrides_stand_over_the_defaults(self) -> None:
        config = topic_config(
            {"segment.bytes": " 1048576 ", "remote.storage.enable": "TRUE", "local.retention.ms": "1000"},
            TIERED,
        )
        assert (config.segment_bytes, config.remote_storage_enable) == (1 << 20, True)
        assert config.effective_local_retention_ms == 1000
        assert config.effective_local_retention_bytes == config.retention_bytes == -1

    def test_local_retention_is_the_total_unless_the_topic_is_tiered(self) -> None:
        config = topic_config({"local.retention.ms": "1000", "local.retention.bytes": "5"}, TIERED)
        assert config.effective_local_retention_ms == config.retention_ms
        assert config.effective_local_retention_bytes == config.retention_bytes

    def test_tests_may_have_segments_of_any_size(self) -> None:
        assert topic_config({"internal.segment.bytes": "100"}, PLAIN).segment_bytes == 100

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"foo": "1"}, "Unknown topic config name: foo"),
            ({"retention.m": "1"}, "Unknown topic config name: retention.m; did you mean 'retention.ms'?"),
            (
                {"segment.bytes": "5"},
                "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576",
            ),
            (
                {"retention.ms": "-5"},
                "Invalid value -5 for configuration retention.ms: Value must be at least -1",
            ),
            (
                {"local.retention.ms": "-3"},
                "Invalid value -3 for configuration local.retention.ms: Value must be at least -2",
            ),
            (
                {"cleanup.policy": "delete,keep"},
                "Invalid value keep for configuration cleanup.policy: String must be one of: compact, delete",
            ),
            (
                {"cleanup.policy": "compact", "remote.storage.enable": "true"},
                "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being "
                "an empty list.",
            ),
            (
                {"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"},
                "conflict topic config setting min.compaction.lag.ms (11) > max.compaction.lag.ms (10)",
            ),
            (
                {"min.cleanable.dirty.ratio": "1.5"},
                "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
            ),
            (
                {"min.cleanable.dirty.ratio": "half"},
                "Invalid value half for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE",
            ),
            (
                {"remote.storage.enable": "maybe"},
                "Invalid value maybe for configuration remote.storage.enable: Expected value to be either "
                "true or false",
            ),
            (
                {"remote.storage.enable": "true", "retention.ms": "10", "local.retention.ms": "11"},
                "Invalid value 11 for configuration local.retention.ms: Value must not be more than "
                "retention.ms property value: 10",
            ),
            (
                {"remote.storage.enable": "true", "retention.bytes": "10", "local.retention.bytes": "-1"},
                "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as "
                "retention.bytes value is set as 10.",
            ),
            (
                {
                    "remote.storage.enable": "true",
                    "remote.log.copy.disable": "true",
                    "local.retention.ms": "11",
                },
                "When `remote.log.copy.disable` is set to true, the `local.retention.ms` and "
                "`retention.ms` must be set to the "
                "identical value because there will be no more logs copied to the remote storage.",
            ),
        ],
    )
    def test_bad_overrides_are_refused_in_kafkas_words(self, overrides: dict[str, str], message: str) -> None:
        assert topic_refused(overrides) == message

    def test_tiered_storage_needs_a_store(self) -> None:
        assert topic_refused({"remote.storage.enable": "true"}, PLAIN).startswith(
            "Tiered Storage functionality is"
        )

    def test_local_retention_of_the_node_is_checked_where_there_is_a_store(self) -> None:
        properties = {"log.retention.ms": "10", "log.local.retention.ms": "11"}
        BrokerConfig.from_properties(properties)
        assert "Value must not be more than" in refused({**properties, "firn.remote.url": "s3://b"})

    def test_tiered_storage_is_taken_away_only_with_its_data(self) -> None:
        tiered = {"remote.storage.enable": "true"}
        validate_topic_change({}, tiered, TIERED)
        validate_topic_change(tiered, {**tiered, "remote.log.copy.disable": "true"}, TIERED)
        for proposed in ({}, {"remote.storage.enable": "false"}):
            with pytest.raises(ConfigError, match="invalid to disable remote storage without deleting"):
                validate_topic_change(tiered, proposed, TIERED)
            deleting = {**proposed, "remote.log.delete.on.disable": "true"}
            assert validate_topic_change(tiered, deleting, TIERED).gives_up_archive
        assert not validate_topic_change(
            {}, {**tiered, "remote.log.delete.on.disable": "true"}, TIERED
        ).gives_up_archive


LEADERS, FOLLOWERS = (f"{side}.replication.throttled.replicas" for side in ("leader", "follower"))


@pytest.mark.parametrize(
    "text", ["", "*", " * ", "0:1", "0:1,1:2", " 0:1 , 12:34 ", "0:1,", ",*", "2147483647:0"]
)
def test_replicas_that_are_throttled_are_pairs_or_all(text: str) -> None:
    for key in (LEADERS, FOLLOWERS):
        assert topic_config({key: text}, TIERED) is not None


@pytest.mark.parametrize(
    "text",
    ["none", "0", "0:", ":1", "0:1:2", "-1:1", "0:a", "*,0:1", "**", "0;1", "\u0661:1", "2147483648:0"],
)
def test_other_lists_of_replicas_are_refused_in_kafkas_words(text: str) -> None:
    shown = f"[{text.replace(',', ', ')}]"
    for key in (LEADERS, FOLLOWERS):
        assert topic_refused({key: text}) == (
            f"Invalid value {shown} for configuration {key}: {key} must be the literal '*' or a list of "
            "replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
