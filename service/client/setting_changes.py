"""Incremental changes of settings: of topics, brokers, groups and loggers (KIP-339). Blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from service.client.admin import ChangingCluster, raise_for
from service.wire.api import ApiKey, request_module


class SettingOperation(IntEnum):
    """Operations of IncrementalAlterConfigs, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    """One change of one key; `APPEND` and `SUBTRACT` are of lists."""

    key: str
    operation: SettingOperation
    value: str | None


class SettingsOwner(NamedTuple):
    """Owner of settings: `kind` is Kafka's type of resource; a broker "" is all brokers.

    `words` is for people.
    """

    kind: int
    name: str
    words: str


def sets(values: Mapping[str, str]) -> Iterator[SettingChange]:
    """Yield the changes that set these values."""
    return (SettingChange(key, SettingOperation.SET, value) for key, value in values.items())


def deletes(keys: Iterable[str]) -> Iterator[SettingChange]:
    """Yield the changes that delete these keys: defaults are in effect again."""
    return (SettingChange(key, SettingOperation.DELETE, None) for key in keys)


def alter_settings(
    cluster: ChangingCluster,
    owner: SettingsOwner,
    changes: Iterable[SettingChange],
    *,
    dry_run: bool = False,
) -> None:
    """Make all changes, or none of them; with `dry_run` only have the cluster check them.

    Raises `RequestError` with the cluster's reason, `StorageError` for a broker that is not there.
    """
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(
        module.AlterableConfig(name=one.key, config_operation=int(one.operation), value=one.value)
        for one in changes
    )
    resource = module.AlterConfigsResource(
        resource_type=owner.kind, resource_name=owner.name, configs=configs
    )
    request = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry_run)
    client = cluster.keeper_of(owner.kind, owner.name)
    (result,) = client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    raise_for(result.error_code, result.error_message, owner.words)
