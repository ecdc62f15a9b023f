"""Authorizer: whether a session may do an operation to a resource, by the ACLs of the metadata image.

The rules are those of Kafka's `StandardAuthorizer`. Each session remembers what it may do to a resource as
long as the image has the same `AclSet`: a change of the ACLs is in effect with the next question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.addresses import names_of
from service.base.errors import RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.steps import Steps
from service.security.acls import NO_ENTRY, AclSet
from service.security.audit import TRACE, Audit, Question, acl_text
from service.security.metrics import AuthorizationMetrics
from service.security.operations import (
    IMPLIED_BY,
    KNOWN_OPERATIONS,
    SUPPORTED,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    allowed_by,
    rights_of,
)
from service.security.session import NODE_ITSELF, Session

_log = logging.getLogger(__name__)

MOST_ANSWERS: Final = 1000
"""Most resources that a session remembers."""
LONGEST_NAME: Final = 255
"""Longest name that a session remembers: longer ones are names of no topic."""
NO_API: Final = -1
HARDCODE: Final = "hardcode"
"""Name that Kafka asks about first, where it asks about some resource of a type."""


class AuthorizerNotReady(RequestError):
    """A question before the ACLs are loaded (Kafka `AuthorizerNotReadyException`, which has no code)."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.unknown_server_error, "The authorizer has not loaded the ACLs yet.")


class Memo:
    """Answers of one session under one `AclSet`."""

    __slots__ = ("acls", "fields", "hosts", "is_super", "principal", "some")

    def __init__(
        self, acls: AclSet | None, principal: str | None, hosts: tuple[str, ...], *, is_super: bool
    ) -> None:
        self.acls = acls
        self.principal = principal
        """The principal as entries name it; None for one that no entry can name."""
        self.hosts = hosts
        """The client's address, as entries may name it."""
        self.is_super = is_super
        self.fields: dict[tuple[int, str], int] = {}
        """Bit fields of what may be done, by resource."""
        self.some: dict[tuple[int, int], bool] = {}
        """Answers to `allows_any`, by operation and type."""


class Authorizer:
    """Answers of one node. Owned by the event loop.

    `acls` returns those of the newest image, or None before they are loaded.
    """

    def __init__(
        self,
        acls: Callable[[], AclSet | None],
        audit: Audit,
        *,
        super_users: frozenset[str],
        allow_everyone: bool,
        now: Callable[[], float],
    ) -> None:
        self._acls = acls
        self._audit = audit
        self._is_logged = audit.is_enabled
        self._super_users = super_users
        self._without_acls = KNOWN_OPERATIONS if allow_everyone else 0
        self._bugs = RateLimitedLog(_log, now=now)
        self.metrics = AuthorizationMetrics()
        self._allowed = self.metrics.allowed

    @property
    def version(self) -> object:
        """The ACLs of the newest image: another object exactly after a change."""
        return self._acls()

    @property
    def acl_count(self) -> int:
        acls = self._acls()
        return 0 if acls is None else len(acls)

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        *,
        quiet: bool = False,
        api: int = NO_API,
        count: int = 1,
    ) -> bool:
        """Return whether the session may do `operation`. A question that ends with a bug is denied.

        `quiet`: a denial is no attempt to do it, and logged at TRACE. `api`, `count`: for the audit log, the
        request and how often it names the resource. Raises `AuthorizerNotReady`.
        """
        memo = session.memo
        if type(memo) is Memo and memo.acls is self._acls():
            # The usual answer, on the way of each produced batch: it was allowed before.
            field = memo.fields.get((resource, name))
            if field is not None and field >> operation & 1 and not self._is_logged(logging.DEBUG):
                self._allowed[api] += 1
                return True
        elif session is NODE_ITSELF:
            return True
        else:
            memo = self._new_memo(session)
        field = memo.fields.get((resource, name))
        if field is None:
            field = self._look_up(memo, resource, name)
        if field >> operation & 1:
            self._allowed[api] += 1
            if self._is_logged(logging.DEBUG):
                self._write(session, operation, resource, name, api, count, quiet=False, allowed=True)
            return True
        self.metrics.denied[api] += 1
        if not quiet or self._is_logged(TRACE):
            self._write(session, operation, resource, name, api, count, quiet=quiet, allowed=False)
        return False

    def allowed_operations(self, session: Session, resource: AclResourceType, name: str) -> int:
        """Return the bit field of the type's operations that the session may do.

        Raises `AuthorizerNotReady`.
        """
        supported = SUPPORTED[resource]
        if session is NODE_ITSELF:
            return supported
        memo = session.memo
        if type(memo) is not Memo or memo.acls is not self._acls():
            memo = self._new_memo(session)
        field = memo.fields.get((resource, name))
        if field is None:
            field = self._look_up(memo, resource, name)
        return field & supported

    def allows_any(
        self, session: Session, operation: AclOperation, resource: AclResourceType, *, api: int = NO_API
    ) -> Steps[bool]:
        """Return whether the session may do `operation` to some resource of the type, in steps (Kafka
        `Authorizer.authorizeByResourceType`). Raises `AuthorizerNotReady`.
        """
        if self.allows(session, operation, resource, HARDCODE, quiet=True, api=api):
            return True
        memo = session.memo
        assert isinstance(memo, Memo)
        known = memo.some.get((operation, resource))
        if known is None:
            assert memo.acls is not None
            try:
                known = yield from memo.acls.allows_any(resource, operation, memo.principal, memo.hosts)
            except Exception as e:
                self._failed(e)
                return False
            memo.some[operation, resource] = known
        return known

    def _new_memo(self, session: Session) -> Memo:
        principal: str | None = str(session.principal)
        is_super = principal in self._super_users
        if ":" in session.principal.type:
            principal, is_super = None, False
        memo = session.memo = Memo(self._acls(), principal, names_of(session.host), is_super=is_super)
        return memo

    def _look_up(self, memo: Memo, resource: int, name: str) -> int:
        """Return the bit field of operations that are allowed on a resource."""
        if memo.is_super:
            return KNOWN_OPERATIONS
        acls = memo.acls
        if acls is None:
            raise AuthorizerNotReady
        try:
            rights = 0
            for host in memo.hosts:
                rights |= acls.rights(resource, name, memo.principal, host)
            field = self._without_acls if rights == NO_ENTRY else allowed_by(rights)
        except Exception as e:
            self._failed(e)
            return 0
        if len(name) <= LONGEST_NAME:
            if len(memo.fields) >= MOST_ANSWERS:
                memo.fields.clear()
            memo.fields[resource, name] = field
        return field

    def _failed(self, error: Exception) -> None:
        self.metrics.failed += 1
        self._bugs.log(logging.ERROR, "The authorizer failed, and denied the request", error=error)

    def _write(
        self,
        session: Session,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        api: int,
        count: int,
        *,
        quiet: bool,
        allowed: bool,
    ) -> None:
        who, host = printable(session.principal), printable(session.host)
        question = Question(who, host, operation, resource, printable(name), api, allowed)
        memo = session.memo
        assert isinstance(memo, Memo)
        self._audit.write(
            question, quiet=quiet, count=count, rule=lambda: _rule(memo, operation, resource, name, allowed)
        )


def _rule(memo: Memo, operation: AclOperation, resource: int, name: str, allowed: bool) -> str:
    """Return why the answer is what it is, in Kafka's words."""
    if memo.is_super:
        return "SuperUser"
    permission = AclPermissionType.ALLOW if allowed else AclPermissionType.DENY
    operations = [operation, AclOperation.ALL]
    if allowed:
        operations += IMPLIED_BY.get(operation, ())
    rights = [rights_of(one, permission) for one in operations]
    if memo.acls is not None:
        found = memo.acls.rule(resource, name, memo.principal, memo.hosts, rights)
        if found is not None:
            return acl_text(*found)
    return "DefaultAllow" if allowed else "DefaultDeny"
