"""Complaints about security settings that are accepted and doubtful, for the log at start. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from service.base.addresses import is_loopback
from service.config.keys import Value
from service.config.listeners import Listener, Listeners
from service.config.oauthbearer import OAUTHBEARER, token_complaints
from service.config.overrides import PREFIX, base_name, is_set_for, split, value_for
from service.config.protocols import SecurityProtocol
from service.config.tables import BROKER_KEYS

_JAAS: Final = "sasl.jaas.config"
_CLIENT_AUTH: Final = "ssl.client.auth"
_OF_ALL: Final = {word: [name for name in BROKER_KEYS if name.startswith(word)] for word in ("ssl.", "sasl.")}


def security_complaints(
    values: Mapping[str, Value], served: Sequence[Listener], listeners: Listeners
) -> Iterable[str]:
    """Return a line for each setting without effect, and for each way to lose a password.

    `served`: the listeners of this node.
    """
    protocols = {one.protocol for one in served}
    protocols |= {listeners.protocols[name] for name in listeners.controller_names[:1]}
    own = [name for name in values if name.startswith(PREFIX)]
    if not any(one.uses_tls for one in protocols):
        yield from _unused(values, own, "ssl.")
    if not any(one.uses_sasl for one in protocols):
        yield from _unused(values, own, "sasl.")
    for name in (_JAAS, *own):
        if values[name] is not None and base_name(name) == _JAAS and not _has_mechanism(name):
            yield (
                f"{name}: ignored: it counts only with the prefix of a listener and a mechanism, as in "
                f"listener.name.internal.plain.{_JAAS}"
            )
    for one in served:
        if one.protocol is SecurityProtocol.SASL_SSL:
            yield from _ignored_client_auth(values, one.name)
        if one.protocol is SecurityProtocol.SASL_PLAINTEXT:
            yield from _open_passwords(values, one)
        if one.protocol.uses_sasl and OAUTHBEARER in _mechanisms(values, one):
            yield from token_complaints(values, one.name)


def _unused(values: Mapping[str, Value], own: Sequence[str], word: str) -> Iterable[str]:
    """Return a line for the keys that begin with `word` and are not at their default. `own`: names of those
    of one listener."""
    changed = [name for name in _OF_ALL[word] if values[name] != BROKER_KEYS[name].default]
    changed += [name for name in own if base_name(name).startswith(word)]
    if changed:
        yield f"no listener has a protocol that needs {', '.join(sorted(changed))}: no effect"


def _has_mechanism(name: str) -> bool:
    return name.startswith(PREFIX) and bool(split(name).mechanism)


def _ignored_client_auth(values: Mapping[str, Value], listener: str) -> Iterable[str]:
    if values[_CLIENT_AUTH] != "none" and not is_set_for(values, _CLIENT_AUTH, listener):
        yield (
            f"{_CLIENT_AUTH}={values[_CLIENT_AUTH]} does not count for the SASL_SSL listener {listener}: set "
            f"{PREFIX}{listener.lower()}.{_CLIENT_AUTH}"
        )


def _open_passwords(values: Mapping[str, Value], listener: Listener) -> Iterable[str]:
    mechanisms = _mechanisms(values, listener)
    for one, what in (("PLAIN", "passwords (PLAIN)"), (OAUTHBEARER, "tokens (OAUTHBEARER)")):
        if one in mechanisms and not is_loopback(listener.host):
            yield (
                f"listener {listener.name} takes {what} over connections that are not encrypted and "
                "come from other machines: use SASL_SSL"
            )


def _mechanisms(values: Mapping[str, Value], listener: Listener) -> tuple[str, ...]:
    found: Any = value_for(values, "sasl.enabled.mechanisms", listener.name)
    return tuple(found)
