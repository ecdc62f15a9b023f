"""Settings replaced as a whole, resources listed, and the levels of loggers, against a whole node."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk
from tests.node.test_topics_and_configs import alter, described

OK = ErrorCode.none
INVALID = ErrorCode.invalid_request
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
QUIET = "service.serving.logger_levels"


def replace_all(
    talk: Talk, *resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False
) -> list[tuple[ErrorCode, str | None]]:
    module = request_module(ApiKey.ALTER_CONFIGS)
    asked = tuple(
        module.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=tuple(module.AlterableConfig(name=key, value=value) for key, value in configs.items()),
        )
        for kind, name, configs in resources
    )
    answer = talk(ApiKey.ALTER_CONFIGS, "AlterConfigsRequest", resources=asked, validate_only=validate_only)
    return [(one.error_code, one.error_message) for one in answer.responses]


def own(talk: Talk, name: str = "t", kind: int = TOPIC) -> dict[str, str]:
    """Return the settings of the resource itself."""
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    asked = module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = talk(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigsRequest",
        resources=(asked,),
        include_synonyms=False,
        include_documentation=False,
    )
    return {one.name: one.value for one in answer.results[0].configs if one.config_source in (1, 2, 3)}


class TestReplacement:
    def test_alter_configs_deletes_unnamed_settings(self, talk: Talk) -> None:
        talk.create("t", retention_ms="1000", max_message_bytes="5000")
        assert replace_all(talk, (TOPIC, "t", {"retention.bytes": "77", "retention.ms": "1000"})) == [
            (OK, None)
        ]
        assert own(talk) == {"retention.bytes": "77", "retention.ms": "1000"}
        assert replace_all(talk, (TOPIC, "t", {})) == [(OK, None)]
        assert own(talk) == {}

    def test_settings_of_brokers_are_replaced_likewise(self, talk: Talk) -> None:
        for name in ("", "1"):
            assert replace_all(talk, (BROKER, name, {"log.retention.ms": "5000"})) == [(OK, None)]
            assert replace_all(talk, (BROKER, name, {"log.segment.bytes": "2000000"})) == [(OK, None)]
            assert own(talk, name, BROKER) == {"log.segment.bytes": "2000000"}
            assert replace_all(talk, (BROKER, name, {})) == [(OK, None)]

    def test_a_validated_change_has_no_effect(self, talk: Talk) -> None:
        talk.create("t", retention_ms="1000")
        assert replace_all(talk, (TOPIC, "t", {}), validate_only=True) == [(OK, None)]
        assert own(talk) == {"retention.ms": "1000"}

    @pytest.mark.parametrize(
        ("kind", "name", "configs", "error", "words"),
        [
            (TOPIC, "t", {"retention.ms": "soon"}, ErrorCode.invalid_config, "retention.ms"),
            (TOPIC, "t", {"no.such": "1"}, ErrorCode.invalid_config, "no.such"),
            (TOPIC, "t", {"a": None, "b": None}, INVALID, "Null value not supported for : a, b"),
            (TOPIC, "x", {}, ErrorCode.unknown_topic_or_partition, "The topic 'x' does not exist."),
            (TOPIC, "", {}, INVALID, "Default topic resources are not allowed."),
            (BROKER, "7", {}, INVALID, "Unexpected broker id, expected 1, but received 7"),
            (LOGGER, "1", {QUIET: "INFO"}, INVALID, "Unknown resource type 8"),
            (99, "t", {}, INVALID, "Unknown resource type 99"),
        ],
    )
    def test_a_refused_alter_configs_changes_nothing(
        self, talk: Talk, kind: int, name: str, configs: dict[str, str | None], error: ErrorCode, words: str
    ) -> None:
        talk.create("t", retention_ms="1000")
        ((found, message),) = replace_all(talk, (kind, name, configs))
        assert found is error
        assert words in (message or "")
        assert own(talk) == {"retention.ms": "1000"}

    def test_a_resource_named_twice_is_refused_and_others_are_changed(self, talk: Talk) -> None:
        for topic in ("t", "u"):
            talk.create(topic, retention_ms="1000")
        twice = (INVALID, "Each resource must appear at most once.")
        found = replace_all(talk, (TOPIC, "t", {}), (TOPIC, "u", {}), (TOPIC, "t", {"retention.ms": "1"}))
        assert found == [twice, (OK, None), twice]
        assert (own(talk, "t"), own(talk, "u")) == ({"retention.ms": "1000"}, {})


def test_lists_are_appended_to_and_subtracted_from(talk: Talk) -> None:
    talk.create("t")
    for operation, value in ((SUBTRACT, "delete"), (APPEND, "delete"), (APPEND, "delete")):
        answer = alter(talk, "t", ("cleanup.policy", operation, value))
        if value and operation == APPEND:
            assert answer.error_code == OK, answer.error_message
            assert described(talk, "t", "cleanup.policy") == {"cleanup.policy": "delete"}
    assert alter(talk, "t", ("retention.ms", APPEND, "1")).error_code == ErrorCode.invalid_config


def resources(talk: Talk, *kinds: int, version: int = 1) -> tuple[ErrorCode, set[tuple[int, str]]]:
    answer = talk(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResourcesRequest", resource_types=kinds)
    return answer.error_code, {(one.resource_type, one.resource_name) for one in answer.config_resources}


def test_resources_with_settings_are_listed(talk: Talk) -> None:
    for name in ("t", "u"):
        talk.create(name)
    topics, broker, logger = {(TOPIC, "t"), (TOPIC, "u")}, {(BROKER, "1")}, {(LOGGER, "1")}
    assert resources(talk) == (OK, topics | broker | logger)
    assert resources(talk, TOPIC) == (OK, topics)
    assert resources(talk, LOGGER, BROKER) == (OK, broker | logger)
    assert resources(talk, 16, 32) == (OK, set())
    assert resources(talk, TOPIC, 1) == (ErrorCode.unsupported_version, set())


class TestLoggers:
    @pytest.fixture(autouse=True)
    def _levels(self) -> Iterator[None]:
        """Restore the levels afterwards."""
        one, root = logging.getLogger(QUIET), logging.root
        before = one.level, root.level
        yield
        one.setLevel(before[0])
        root.setLevel(before[1])

    @staticmethod
    def levels(talk: Talk, *names: str) -> dict[str, str]:
        return described(talk, "1", *names, kind=LOGGER)

    @staticmethod
    def change(talk: Talk, *changes: tuple[str, int, str | None], name: str = "1") -> Any:
        return alter(talk, name, *changes, kind=LOGGER)

    def test_a_level_is_changed_while_the_node_runs_and_taken_back(self, talk: Talk) -> None:
        assert self.change(talk, (QUIET, SET, "ERROR"), ("root", SET, "WARN")).error_code == OK
        assert logging.getLogger(QUIET).level == logging.ERROR
        found = self.levels(talk)
        assert (found[QUIET], found["root"]) == ("ERROR", "WARN")
        assert len(found) > 20
        assert self.change(talk, (QUIET, DELETE, None)).error_code == OK
        assert self.levels(talk, QUIET) == {QUIET: "WARN"}

    @pytest.mark.parametrize(
        ("changes", "name", "error", "words"),
        [
            (
                ((QUIET, SET, "LOUD"),),
                "1",
                ErrorCode.invalid_config,
                "ERROR, FATAL, INFO, TRACE, WARN",
            ),
            ((("no.such", SET, "INFO"),), "1", ErrorCode.invalid_config, "Logger no.such does not exist!"),
            ((("root", DELETE, None),), "1", INVALID, "Removing the log level of the root logger"),
            (((QUIET, APPEND, "INFO"),), "1", INVALID, "APPEND operation is not allowed"),
            (((QUIET, SUBTRACT, "INFO"),), "1", INVALID, "SUBTRACT operation is not allowed"),
            (((QUIET, 9, "INFO"),), "1", INVALID, "Unknown operation type 9"),
            (((QUIET, SET, None),), "1", INVALID, "Null value not supported"),
            (((QUIET, SET, "INFO"),), "2", INVALID, "Unexpected node id. Expected 1, but received 2"),
            (((QUIET, SET, "INFO"),), "x", INVALID, "Node id must be an integer, but it is: x"),
            (((QUIET, SET, "ERROR"), ("no.such", SET, "INFO")), "1", ErrorCode.invalid_config, "no.such"),
        ],
    )
    def test_a_refused_change_changes_no_log_level(
        self, talk: Talk, changes: Any, name: str, error: ErrorCode, words: str
    ) -> None:
        before = self.levels(talk, QUIET)
        answer = self.change(talk, *changes, name=name)
        assert answer.error_code is error
        assert words in answer.error_message
        assert self.levels(talk, QUIET) == before

    def test_more_changes_than_an_operation_may_write_are_refused(self, talk: Talk) -> None:
        many = [(f"service.{number}", SET, "INFO") for number in range(10_001)]
        assert self.change(talk, *many).error_code is ErrorCode.policy_violation
        talk.create("t")
        assert alter(talk, "t", *many).error_code is ErrorCode.policy_violation

    def test_asking_for_a_logger_does_not_make_it(self, talk: Talk) -> None:
        self.change(talk, ("service.nobody", SET, "INFO"))
        assert "service.nobody" not in logging.root.manager.loggerDict


@pytest.mark.parametrize("operation", [0, 2, 3])
@pytest.mark.parametrize("name", ["cleanup.policy", "x" * 40_000])
def test_a_setting_longer_than_any_ends_the_connection_as_in_kafka(
    talk: Talk, name: str, operation: int
) -> None:
    """A string has at most 32,767 bytes: a request with a longer one is not read."""
    talk.create("t")
    items = ",".join(f"item-{number}" for number in range(5000))
    with pytest.raises(ConnectionError):
        alter(talk, "t", (name, operation, items))
