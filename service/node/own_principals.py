"""Principals that a node has at other nodes, and complaints about those that may do too little there. [P]

What nodes ask of each other takes CLUSTER_ACTION, so their principals belong into `super.users`.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.base.errors import ConfigError
from service.base.printable import printable
from service.config.security import OutgoingSecurity
from service.config.settings import BrokerConfig
from service.security.principal import ANONYMOUS, USER, Principal


def principal_at(outgoing: OutgoingSecurity) -> Principal | None:
    """Return the principal of this node's connections to a listener; None where a certificate decides, or the
    login module cannot be read."""
    if outgoing.jaas is None:
        return None if outgoing.protocol.uses_tls else ANONYMOUS
    from service.security.jaas import read_jaas  # a node without logins does not load it

    try:
        name = read_jaas(outgoing.jaas.reveal()).options.get("username")
    except ConfigError:
        return None
    return None if name is None else Principal(USER, name)


def principal_complaints(config: BrokerConfig) -> Iterable[str]:
    """Return a line for each principal of this node that `super.users` does not name, with an authorizer."""
    if not config.authorizer_class_name:
        return
    security = config.cluster.security
    listeners: dict[Principal, list[str]] = {}
    for outgoing in (security.inter_broker, security.controller):
        if outgoing is not None and (principal := principal_at(outgoing)) is not None:
            listeners.setdefault(principal, []).append(outgoing.listener)
    for principal, names in listeners.items():
        if str(principal) not in config.super_principals:
            yield (
                f"this node is {printable(str(principal))} at listeners {', '.join(names)} of other nodes, "
                "and super.users does not name it: without an ACL for CLUSTER_ACTION they refuse its requests"
            )
