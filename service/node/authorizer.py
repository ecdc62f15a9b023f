"""Authorizer of a node, by its settings and the ACLs of its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.config.settings import BrokerConfig
from service.metadata.publisher import Publisher
from service.security.acls import AclSet
from service.security.audit import Audit
from service.security.authorizer import Authorizer
from service.wire.api import APIS


def make_authorizer(config: BrokerConfig, metadata: Callable[[], Publisher | None]) -> Authorizer | None:
    """Return the node's authorizer; None where the settings name none. `metadata` returns the metadata log
    once there is one.
    """
    if not config.authorizer_class_name:
        return None

    def acls() -> AclSet | None:
        publisher = metadata()
        return None if publisher is None or not publisher.has_loaded else publisher.image.acls

    loop = asyncio.get_running_loop()
    return Authorizer(
        acls,
        Audit(later=loop.call_later, api_name=api_name),
        super_users=config.super_principals,
        allow_everyone=config.allow_everyone_if_no_acl_found,
        now=loop.time,
    )


def api_name(key: int) -> str:
    """Return Kafka's name of an API, or its number."""
    api = APIS.get(key)
    return str(key) if api is None else api.name
