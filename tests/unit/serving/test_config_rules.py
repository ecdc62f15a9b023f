"""Rules for settings of brokers: what a controller checks of its own, and of another node's listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.base.steps import Steps, at_once
from service.config.settings import BrokerConfig
from service.metadata.controller.cluster_control import register_broker
from service.metadata.controller.configs_control import alter_configs, incremental_alter_configs
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    AlterResourceResult,
    ConfigOperation,
    ResourceType,
)
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import ConfigRecord
from service.replicas.dynamic_config import dynamic_config
from service.serving.config_validation import NodeConfigRules
from tests.unit.metadata.controllers import CLUSTER_ID, registration

NODE = BrokerConfig.from_properties(
    {
        "node.id": "1",
        "listeners": "INNER://h:1,OUTER://h:2",
        "inter.broker.listener.name": "INNER",
        "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT",
    }
)
RULES = NodeConfigRules(lambda: NODE)
Decide = Callable[..., Steps[ControllerResult[list[AlterResourceResult]]]]
OURS, THEIRS = "listener.name.outer.ssl.keystore.location", "listener.name.theirs.ssl.keystore.location"


def check(broker: str, configs: Mapping[str, str]) -> None:
    at_once(RULES.validate(MetadataImage(), ResourceType.BROKER, broker, configs))


def test_the_listeners_of_this_node_have_to_be_there() -> None:
    check("1", {OURS: "/k.pem"})
    with pytest.raises(ConfigError, match="there is no listener called 'theirs'"):
        check("1", {THEIRS: "/k.pem"})


def test_the_listeners_of_another_node_are_its_own_affair() -> None:
    check("2", {THEIRS: "/k.pem", "log.retention.ms": "1000"})
    with pytest.raises(ConfigError, match="unknown configuration key of a listener"):
        check("2", {"listener.name.theirs.ssl.keystore.locatoin": "/k.pem"})
    with pytest.raises(ConfigError, match="String must be one of: JKS, PKCS12, PEM"):
        check("2", {"listener.name.theirs.ssl.keystore.type": "DER"})
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
        check("2", {"listener.name.theirs.ssl.client.auth": "none"})


def test_settings_of_all_brokers_may_name_any_listener() -> None:
    limit = "listener.name.theirs.max.connections"
    check("", {limit: "5", "log.retention.ms": "1000"})
    with pytest.raises(ConfigError, match="Value must be at least"):
        check("", {limit: "-5"})
    with pytest.raises(ConfigError, match="Cannot update these configs at default cluster level"):
        check("", {THEIRS: "/k.pem"})


@pytest.mark.parametrize("broker", ["", "1"])
def test_settings_of_listeners_that_are_not_there_refuse_no_other_change(broker: str) -> None:
    delta = MetadataDelta(MetadataImage())
    for resource, name in (("1", THEIRS), ("", "listener.name.theirs.max.connections")):
        delta.replay(ConfigRecord(resource_type=4, resource_name=resource, name=name, value="5"))
    image = delta.build(0, 1, 0)
    at_once(RULES.validate(image, ResourceType.BROKER, broker, {"log.retention.ms": "1000"}))
    assert dynamic_config(NODE, image).dynamic == {}
    assert dynamic_config(NODE, image).dynamic_default == {}


def answers(image: MetadataImage, change: AlterConfig, decide: Decide) -> tuple[int, list[Any], str | None]:
    """Error, records and message of one change of broker 1."""
    resource = AlterResource(ResourceType.BROKER, "1", (change,))
    result = at_once(decide(image, [resource], RULES))
    (answer,) = result.response
    return answer.error, [frame.record for frame in result.frames], answer.message


@pytest.mark.parametrize("decide", [alter_configs, incremental_alter_configs])
@pytest.mark.parametrize(
    "name",
    [
        "ssl.key.password",
        "listener.name.outer.ssl.key.password",
        "listener.name.outer.plain.sasl.jaas.config",
    ],
)
def test_no_password_becomes_a_record(decide: Decide, name: str) -> None:
    error, records, message = answers(
        MetadataImage(), AlterConfig(name, ConfigOperation.SET, "geheim"), decide
    )
    assert (error, records) == (ErrorCode.invalid_config, [])
    assert message == (
        f"{name}: the metadata is copied to the bucket: name a file, or set it in the node's properties"
    )


def test_a_password_that_kafkas_controllers_wrote_can_be_deleted() -> None:
    name = "listener.name.outer.ssl.key.password"
    delta = MetadataDelta(MetadataImage())
    for frame in at_once(
        register_broker(
            MetadataImage(), registration(1), cluster_id=CLUSTER_ID, next_offset=0, has_session=False
        )
    ).frames:
        delta.replay(frame.record)
    delta.replay(ConfigRecord(resource_type=4, resource_name="1", name=name, value="geheim"))
    deletion = AlterConfig(name, ConfigOperation.DELETE, None)
    error, records, _ = answers(delta.build(0, 1, 0), deletion, incremental_alter_configs)
    assert error == ErrorCode.none
    assert [(one.name, one.value) for one in records] == [(name, None)]


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("ssl.key.password", True), ("ssl.keystore.location", False), ("no.such.key", False)],
)
def test_only_keys_of_passwords_are_kept_out(name: str, is_secret: bool) -> None:
    assert (RULES.secrecy(name) is not None) == is_secret
