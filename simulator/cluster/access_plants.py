"""Bugs of logins and authorization, planted one at a time in secured histories (`plants.PLANTS`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from service.base.steps import at_once
from service.controller_client import forwarding
from service.groups import quick_commits
from service.metadata.access_delta import AccessDelta
from service.metadata.image import MetadataImage
from service.network.authenticating import Authenticator
from service.node.quorum_control_plane import ClusterPlane
from service.security import authorizer
from service.security.authorizer import Authorizer, Memo
from service.security.login import ServerLogin
from service.security.operations import AclOperation, AclPermissionType, rights_of
from service.security.principal import ANONYMOUS
from service.serving.fetch_operation import FetchOperation
from service.serving.handlers.fetch import _IncrementalFetch as IncrementalFetch
from service.serving.listener_logins import NodeLogins


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    setattr(owner, name, make(getattr(owner, name)))


def memo_kept() -> None:
    """Keep what a session may do when the ACLs have changed."""

    def make(new: Any) -> Any:
        return lambda self, session: session.memo if isinstance(session.memo, Memo) else new(self, session)

    _swap(Authorizer, "_new_memo", make)


def denials_forgotten() -> None:
    """Do not look at entries that deny."""
    denials = 0
    for operation in AclOperation:
        denials |= rights_of(operation, AclPermissionType.DENY)
    _swap(authorizer, "allowed_by", lambda allowed_by: lambda rights: allowed_by(rights & ~denials))


def waiting_fetch_not_asked_again() -> None:
    """Ask for the right of a fetch that waits at its first look alone."""

    def make(new_pass: Any) -> Any:
        def careless(self: Any, started: Any) -> Any:
            found = new_pass(self, started)
            if self._wait is not None:
                found._authorizer = None
            return found

        return careless

    _swap(FetchOperation, "_new_pass", make)


def fetch_session_not_asked() -> None:
    """Ask for the rights of a fetch session when it begins, and not again."""

    def make(new_pass: Any) -> Any:
        def careless(self: Any, started: Any) -> Any:
            found = new_pass(self, started)
            found._authorizer = None
            return found

        return careless

    _swap(IncrementalFetch, "_new_pass", make)


def quick_commit_not_asked() -> None:
    """Commit quickly to topics that the client may not read."""

    def make(decide: Any) -> Any:
        return lambda plain, shard, topics, now_ms, may_use: decide(plain, shard, topics, now_ms, None)

    _swap(quick_commits, "decide", make)


def envelope_names_nobody() -> None:
    """Forward every request as that of User:ANONYMOUS."""
    _swap(forwarding, "wrap", lambda wrap: lambda frame, host, principal: wrap(frame, host, ANONYMOUS))


def envelope_names_the_node() -> None:
    """Forward every request as that of the node, which may do everything."""
    node = ANONYMOUS._replace(name="node")
    _swap(forwarding, "wrap", lambda wrap: lambda frame, host, principal: wrap(frame, host, node))


def revocations_not_in_snapshots() -> None:
    """Take from a snapshot what was granted, but not what was revoked."""

    def make(set_acls: Any) -> Any:
        def keeping(self: Any, acls: Any) -> None:
            edit = acls.edit()
            for entry_id, entry in self._acls.entries.items():
                if entry_id not in acls.entries:
                    edit.add(entry_id, entry)
            set_acls(self, at_once(edit.done_in_steps()))

        return keeping

    _swap(AccessDelta, "set_acls", make)


def passwords_remembered() -> None:
    """Keep a credential that was looked up once."""
    known: dict[tuple[int, str, str], Any] = {}

    def make(find: Any) -> Any:
        def remembering(self: Any, user: str, mechanism: str) -> Any:
            key = id(self), user, mechanism
            known[key] = known.get(key) or find(self, user, mechanism)
            return known[key]

        return remembering

    _swap(NodeLogins, "_credential", make)


def deleted_users_stay() -> None:
    """Do nothing for the record that removes a credential."""
    _swap(AccessDelta, "remove_credential", lambda _: lambda self, record: None)


def sessions_do_not_end() -> None:
    """Serve sessions whose time is over."""
    _swap(Authenticator, "_is_over", lambda _: lambda self, session, now: False)


def served_as_the_disk_says() -> None:
    """Serve by the metadata of the node's own disk, before the controller has told what is committed."""

    def make(caught_up: Any) -> Any:
        async def eager(self: Any, stack: Any, endpoints: Any) -> None:
            self._recovers.set()
            self._serves.set()
            await caught_up(self, stack, endpoints)

        return eager

    _swap(ClusterPlane, "caught_up", make)


def credentials_in_the_bucket() -> None:
    """Copy the metadata to the bucket with credentials."""
    _swap(MetadataImage, "without_credentials", lambda _: lambda self: self)


def tokens_logged() -> None:
    """Log what clients log in with."""

    def make(came: Any) -> Any:
        def telling(self: Any, token: bytes) -> Any:
            logging.getLogger("service.network").debug("%s: %r", self.mechanism, token)
            return came(self, token)

        return telling

    _swap(ServerLogin, "token_came", make)


OF_ACCESS: Final[dict[str, Callable[[], None]]] = {
    one.__name__: one
    for one in (
        memo_kept,
        denials_forgotten,
        waiting_fetch_not_asked_again,
        fetch_session_not_asked,
        quick_commit_not_asked,
        envelope_names_nobody,
        envelope_names_the_node,
        revocations_not_in_snapshots,
        passwords_remembered,
        deleted_users_stay,
        sessions_do_not_end,
        served_as_the_disk_says,
        credentials_in_the_bucket,
        tokens_logged,
    )
}
