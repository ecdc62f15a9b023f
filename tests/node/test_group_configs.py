"""Settings of single groups: altered, described and listed as Apache Kafka 4.3.1 answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk

BROKER = 4
GROUP = 32
SESSION, HEARTBEAT, ASSIGNMENT = (
    f"consumer.{what}.ms" for what in ("session.timeout", "heartbeat.interval", "assignment.interval")
)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    node = NodeThread(tmp_path / "data").start()
    try:
        with node.client() as client:
            yield Talk(client)
    finally:
        node.stop()
    assert node.failure is None


def alter(
    talk: Talk, group: str, values: dict[str, str | None], operation: int = 0, kind: int = GROUP
) -> tuple[ErrorCode, Any]:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(
        module.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, value in values.items()
    )
    resource = module.AlterConfigsResource(resource_type=kind, resource_name=group, configs=configs)
    [answer] = talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=(resource,),
        validate_only=False,
    ).responses
    return answer.error_code, answer.error_message


def describe(talk: Talk, group: str) -> Any:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resource = module.DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=None
    )
    [answer] = talk(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigsRequest",
        resources=(resource,),
        include_synonyms=True,
        include_documentation=False,
    ).results
    return answer


def values(talk: Talk, group: str) -> dict[str, tuple[str, int]]:
    return {one.name: (one.value, one.config_source) for one in describe(talk, group).configs}


def listed(talk: Talk) -> list[str]:
    answer = talk(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResourcesRequest", resource_types=(GROUP,))
    return [one.resource_name for one in answer.config_resources]


def test_the_nodes_interval_of_assignments_changes_while_it_runs(talk: Talk) -> None:
    """Alone of the settings of groups (Kafka `GroupCoordinatorConfig.RECONFIGURABLE_CONFIGS`)."""
    name = f"group.{ASSIGNMENT}"
    assert alter(talk, "", {name: "20000"}, kind=BROKER)[0] is not ErrorCode.none
    assert alter(talk, "", {"group.consumer.max.size": "2"}, kind=BROKER)[0] is not ErrorCode.none
    assert alter(talk, "", {name: "250"}, kind=BROKER) == (ErrorCode.none, None)
    assert values(talk, "g")[ASSIGNMENT][0] == "250"


def test_a_group_has_settings_of_its_own_over_the_nodes(talk: Talk) -> None:
    nodes = {SESSION: ("45000", 5), HEARTBEAT: ("5000", 5), ASSIGNMENT: ("1000", 5)}
    assert values(talk, "g") == nodes
    assert listed(talk) == []
    assert alter(talk, "g", {SESSION: "50000"}) == (ErrorCode.none, None)
    assert values(talk, "g") == {**nodes, SESSION: ("50000", 8)}
    assert values(talk, "another") == nodes
    [entry] = [one for one in describe(talk, "g").configs if one.name == SESSION]
    assert [(one.name, one.value, one.source) for one in entry.synonyms] == [
        (SESSION, "50000", 8),
        (f"group.{SESSION}", "45000", 5),
    ]
    assert listed(talk) == ["g"]
    assert alter(talk, "g", {SESSION: None}, operation=1) == (ErrorCode.none, None)
    assert values(talk, "g") == nodes
    assert listed(talk) == []


@pytest.mark.parametrize(
    ("change", "operation", "message"),
    [
        (
            {SESSION: "5"},
            0,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        ({SESSION: "x"}, 0, f"Invalid value x for configuration {SESSION}: Not a number of type INT"),
        ({"nope": "5"}, 0, "Unknown group config name: nope"),
        ({SESSION: "50000"}, 2, f"Can't APPEND to key {SESSION} because its type is not LIST."),
        (
            {HEARTBEAT: "15000", ASSIGNMENT: "15001"},
            0,
            f"{ASSIGNMENT} must be less than or equal to group.consumer.max.assignment.interval.ms",
        ),
    ],
)
def test_invalid_group_configs_are_refused(
    talk: Talk, change: dict[str, str | None], operation: int, message: str
) -> None:
    before = values(talk, "g")
    assert alter(talk, "g", change, operation) == (ErrorCode.invalid_config, message)
    assert values(talk, "g") == before


def test_all_groups_together_have_no_settings(talk: Talk) -> None:
    refused = (ErrorCode.invalid_request, "Default group resources are not allowed.")
    assert alter(talk, "", {SESSION: "50000"}) == refused
    answer = describe(talk, "")
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.invalid_request,
        "Group name must not be empty",
    )
