"""Lookup of the node that coordinates a group or a transactional id. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.client.admin import Cluster, raise_for
from service.wire.api import ApiKey, request_module

Again = Callable[[], bool]
"""Wait a moment for a coordinator to be there and to load what it has; False when no time is left."""
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
COORDINATOR_MOVED: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)


def find_coordinator(cluster: Cluster, again: Again, kind: int, key: str) -> int:
    """Return the node that coordinates a group or an id, asked for until there is one.

    The first question for a group creates the topic of groups.
    """
    module = request_module(ApiKey.FIND_COORDINATOR)
    request = module.FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
    (one,) = cluster.first.request(ApiKey.FIND_COORDINATOR, request).coordinators
    while one.error_code in COORDINATOR_MOVED and again():
        (one,) = cluster.first.request(ApiKey.FIND_COORDINATOR, request).coordinators
    raise_for(one.error_code, one.error_message, f"the coordinator of {key}")
    node: int = one.node_id
    return node
