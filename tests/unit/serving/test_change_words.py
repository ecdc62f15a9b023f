"""Words of the audit log: secrets are hidden, and values and names are bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.serving.change_words import changed_quotas, changed_settings, reassigned

NONE = ErrorCode.none


def settings(kind: int, name: str, *changes: tuple[str, str]) -> list[list[str]]:
    """Return the items of the changes that a request makes."""
    configs = [SimpleNamespace(name=key, value=value, config_operation=0) for key, value in changes]
    resource = SimpleNamespace(resource_type=kind, resource_name=name, configs=configs)
    request = SimpleNamespace(validate_only=False, resources=[resource])
    answer = SimpleNamespace(resource_type=kind, resource_name=name, error_code=NONE)
    changes_made = changed_settings(request, SimpleNamespace(responses=[answer]))
    return [list(one.items) for one in changes_made if one.number]


@pytest.mark.parametrize(
    "name", ["ssl.keystore.password", "listener.name.inside.plain.sasl.jaas.config", "password.of.a.plugin"]
)
def test_a_secret_of_a_broker_is_hidden_and_so_is_a_key_that_is_not_known(name: str) -> None:
    assert settings(4, "1", (name, "hunter2")) == [[f"broker 1: {name}=[hidden]"]]


def test_a_long_value_is_cut_and_cannot_begin_a_line() -> None:
    [[item]] = settings(2, "t", ("leader.replication.throttled.replicas", "1:1\n" + "x" * 10_000))
    assert len(item) < 200
    assert "\n" not in item


def test_many_settings_are_counted() -> None:
    [items] = settings(2, "t", *((f"key.{n}", "1") for n in range(1000)))
    assert len(items) == 20


def test_reassignments_tell_replicas_and_cancellations_of_those_that_had_no_error() -> None:
    def part(index: int, **fields: Any) -> SimpleNamespace:
        return SimpleNamespace(partition_index=index, **fields)

    asked = [part(0, replicas=(2, 3)), part(1, replicas=None), part(2, replicas=(1,))]
    answered = [part(2, error_code=ErrorCode.invalid_replica_assignment), part(0, error_code=NONE)]
    request = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=asked)])
    response = SimpleNamespace(error_code=NONE, responses=[SimpleNamespace(name="t", partitions=answered)])
    [change] = reassigned(request, response)
    assert (change.number, list(change.items)) == (2, ["t-0 [replicas=2,3]", "t-1 [cancelled]"])


def test_quotas_tell_the_entity_and_what_is_set_and_removed() -> None:
    user = SimpleNamespace(entity_type="user", entity_name="alice")
    anyone = SimpleNamespace(entity_type="client-id", entity_name=None)
    ops = [
        SimpleNamespace(key="producer_byte_rate", value=1048576.0, remove=False),
        SimpleNamespace(key="request_percentage", value=0.0, remove=True),
    ]
    request = SimpleNamespace(validate_only=False, entries=[SimpleNamespace(entity=[user, anyone], ops=ops)])
    [change] = changed_quotas(request, SimpleNamespace(entries=[SimpleNamespace(error_code=NONE)]))
    assert list(change.items) == [
        "user alice client-id (default): producer_byte_rate=1048576 request_percentage is removed"
    ]
