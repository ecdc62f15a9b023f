"""Limits of a client, and the bucket that it shares with others, by its user and client id. [P]

The most specific entity with a limit counts, for each key by itself:

1. user and client id, 2. user and default client id, 3. user, 4. default user and client id,
5. default user and default client id, 6. default user, 7. client id, 8. default client id.

Under 1, 2, 4 and 5 each pair of user and client id has a bucket of its own, under 3 and 6 each user, under 7
and 8 each client id. Users are known by name: the type of a principal does not count.

>>> quotas = {(None, "", ""): {"producer_byte_rate": 1000.0}, ("", "c", ""): {"request_percentage": 50.0}}
>>> shares_of(quotas, "alice", "c")
Shares(produce=Share(user='alice', client_id=None, limit=1000.0), fetch=None, \
request=Share(user=None, client_id='c', limit=50.0), mutation=None)

Apache Kafka 4.3 ``ClientQuotaManager``. A client without a client id is under the default of client ids here,
while Kafka limits it by its user alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from service.base.addresses import names_of

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCE, FETCH, REQUEST, MUTATION)

Entity: TypeAlias = "tuple[str | None, str | None, str | None]"
"""User, client id and address; None: the default of the type, "": the entity has none of the type."""
Limits: TypeAlias = "Mapping[Any, Mapping[str, float]]"
"""Limits by key, of each `Entity`. Immutable: another set of limits is another object."""
LONGEST_KEPT: Final = 255
"""Longest name of a user or client id that a bucket keeps as it is."""


class Share(NamedTuple):
    """Bucket of a client for one key, and its limit. None for what clients of the bucket may differ in."""

    user: str | None
    client_id: str | None
    limit: float


class Shares(NamedTuple):
    """Shares of a client; None: unlimited."""

    produce: Share | None = None
    fetch: Share | None = None
    request: Share | None = None
    mutation: Share | None = None


UNLIMITED: Final = Shares()


def shares_of(limits: Limits, user: str, client_id: str) -> Shares:
    """Return the shares of a client with this user and client id."""
    found = []
    for entity, bucket in _precedence(user, client_id):
        values = limits.get(entity)
        if values is not None:
            found.append((values, bucket))
    if not found:
        return UNLIMITED
    shares: list[Share | None] = []
    for key in CLIENT_KEYS:
        of_key = None
        for values, (of_user, of_client) in found:
            if key in values:
                of_key = Share(_kept(of_user), _kept(of_client), values[key])
                break
        shares.append(of_key)
    return Shares(*shares)


def _kept(name: str | None) -> str | None:
    """Return the name as its bucket keeps it: clients make names up, and a long one would hold memory."""
    if name is None or len(name) <= LONGEST_KEPT:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    return name[:LONGEST_KEPT] + digest


def _precedence(user: str, client_id: str) -> list[tuple[Entity, tuple[str | None, str | None]]]:
    """Return the entities of a client, the most specific first, each with the user and client id of its
    bucket."""
    both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
    named: list[tuple[Entity, tuple[str | None, str | None]]] = [
        ((user, client_id, ""), both),
        ((user, None, ""), both),
        ((user, "", ""), of_user),
        ((None, client_id, ""), both),
        ((None, None, ""), both),
        ((None, "", ""), of_user),
        (("", client_id, ""), of_client),
        (("", None, ""), of_client),
    ]
    # No entity has an empty name: an empty part would find the entity without that part.
    return [
        (entity, bucket)
        for n, (entity, bucket) in enumerate(named)
        if (user or n not in _BY_USER) and (client_id or n not in _BY_CLIENT)
    ]


_BY_USER: Final = frozenset({0, 1, 2})
_BY_CLIENT: Final = frozenset({0, 3, 6})
"""places in `_precedence` of entities with a user's, and with a client id's own name"""


def connection_limit(limits: Limits, address: str) -> float | None:
    """Return the connections per second that this address may open; None: unlimited. A limit may name it by
    any of its usual texts."""
    for name in (*names_of(address), None):
        values = limits.get(("", "", name))
        if values is not None and CONNECTION in values:
            return values[CONNECTION]
    return None
