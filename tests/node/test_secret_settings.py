"""Passwords and keys of listeners, as clients of a whole node see and change them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk

SECRET = "geheim-17"
SECRETS = {
    "ssl_key_password": SECRET,
    "ssl_keystore_key": SECRET,
    "listener_name_plaintext_ssl_truststore_password": SECRET,
    "listener_name_plaintext_plain_sasl_jaas_config": f'x.PlainLoginModule required password="{SECRET}";',
}
BROKER = 4
LOCATION = "listener.name.plaintext.ssl.keystore.location"
SET = 0


def alter(talk: Talk, broker: str, **settings: str) -> tuple[int, str]:
    """Set the keys of a broker; return the answer's error and its message."""
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(
        module.AlterableConfig(name=name.replace("_", "."), config_operation=SET, value=value)
        for name, value in settings.items()
    )
    resource = module.AlterConfigsResource(resource_type=BROKER, resource_name=broker, configs=configs)
    request = "IncrementalAlterConfigsRequest"
    (answer,) = talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, request, resources=(resource,), validate_only=False
    ).responses
    return answer.error_code, answer.error_message or ""


def describe(talk: Talk, broker: str = "1") -> Any:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resource = module.DescribeConfigsResource(
        resource_type=BROKER, resource_name=broker, configuration_keys=None
    )
    (result,) = talk(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigsRequest",
        resources=(resource,),
        include_synonyms=True,
        include_documentation=True,
    ).results
    assert result.error_code == 0, result.error_message
    return result


def test_a_node_tells_its_passwords_to_nobody(
    start: Callable[..., NodeThread], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with start(**SECRETS).client() as client:
        talk = Talk(client)
        result = describe(talk)
        shown = {one.name: one for one in result.configs}
        for name in SECRETS:
            one = shown[name.replace("_", ".")]
            assert (one.value, one.is_sensitive, one.config_type, one.config_source) == (None, True, 9, 4)
            assert {synonym.value for synonym in one.synonyms} == {None}
        assert (shown["ssl.keystore.password"].value, shown["ssl.keystore.password"].is_sensitive) == (
            None,
            True,
        )
        assert SECRET not in repr(result)
        assert alter(talk, "1", ssl_keystore_password=SECRET)[0] == ErrorCode.invalid_config
    assert SECRET not in caplog.text
    assert not [record for record in caplog.records if SECRET in repr(record.__dict__)]


def test_no_password_is_written_into_the_metadata(talk: Talk) -> None:
    name = "listener.name.plaintext.ssl.keystore.password"
    for broker in ("1", ""):
        error, message = alter(talk, broker, **{name: SECRET})
        assert error == ErrorCode.invalid_config
        assert message == (
            f"{name}: the metadata is copied to the bucket: name a file, or set it in the node's properties"
        )


@pytest.mark.parametrize(
    ("broker", "name", "message"),
    [
        (
            "1",
            "ssl.keystore.location",
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.location]",
        ),
        (
            "",
            LOCATION,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{LOCATION}]",
        ),
        (
            "1",
            "listener.name.plaintext.ssl.client.auth",
            "Cannot update these configs dynamically: [listener.name.plaintext.ssl.client.auth]",
        ),
        (
            "1",
            "listener.name.plaintex.ssl.keystore.location",
            "listener.name.plaintex.ssl.keystore.location: there is no listener called 'plaintex'; did you "
            "mean 'plaintext'?",
        ),
    ],
)
def test_settings_of_listeners_that_cannot_change_are_refused(
    talk: Talk, broker: str, name: str, message: str
) -> None:
    assert alter(talk, broker, **{name: "none"}) == (ErrorCode.invalid_request, message)


def test_a_store_of_a_listener_changes_while_the_node_runs(talk: Talk) -> None:
    assert alter(talk, "1", **{LOCATION: "/new/store.pem"}) == (0, "")
    (one,) = (one for one in describe(talk).configs if one.name == LOCATION)
    assert (one.value, one.config_source, one.is_sensitive, one.read_only) == (
        "/new/store.pem",
        2,
        False,
        True,
    )
    assert [(s.name, s.value, s.source) for s in one.synonyms] == [(LOCATION, "/new/store.pem", 2)]
