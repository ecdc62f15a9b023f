"""Audit log: a line for each answer of the authorizer, in Kafka's words.

Denied requests are logged at INFO, allowed ones at DEBUG, and denials that only filter a list at TRACE (5,
below Python's DEBUG). The same line is written once in `SAME_LINE_S`; at the end of that time another one
tells how often it came again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.printable import printable
from service.security.operations import AclOperation, AclPermissionType, AclResourceType, PatternType

AUDIT_LOGGER: Final = "firn.audit"
TRACE: Final = 5
SAME_LINE_S: Final = 10.0
MOST_LINES: Final = 1000
"""Most different lines that are told apart within `SAME_LINE_S`; more are counted, and told as one line."""

_log = logging.getLogger(AUDIT_LOGGER)


class Question(NamedTuple):
    """Words of one line, each `printable`; equal ones are the same line."""

    principal: str
    host: str
    operation: int
    resource: int
    name: str
    api: int
    allowed: bool


class Audit:
    """Audit log of one authorizer. Owned by the event loop.

    `later`: calls a function after some seconds. `api_name`: Kafka's name of an API.
    """

    def __init__(
        self,
        *,
        later: Callable[[float, Callable[[], None]], object],
        api_name: Callable[[int], str],
        logger: logging.Logger = _log,
    ) -> None:
        self._later = later
        self._api_name = api_name
        self._logger = logger
        self.is_enabled: Final = logger.isEnabledFor
        """Return whether lines of a level are written."""
        self._lines: dict[Question, _Line] = {}
        self._left_out = 0

    def write(self, question: Question, *, quiet: bool, count: int, rule: Callable[[], str]) -> None:
        """Write a line, or count it. `count`: how often the request names the resource. `rule` returns why
        the answer is what it is."""
        level = TRACE if quiet else logging.DEBUG if question.allowed else logging.INFO
        if not self._logger.isEnabledFor(level):
            return
        known = self._lines.get(question)
        if known is not None:
            known.times += 1
            return
        if len(self._lines) >= MOST_LINES:
            self._left_out += 1
            return
        if not self._lines:
            self._later(SAME_LINE_S, self._tell)
        line = self._text(question, count, rule())
        self._lines[question] = _Line(level, line)
        self._logger.log(level, "%s", line)

    def _tell(self) -> None:
        """Write how often the lines of the last seconds came again, and forget them."""
        lines, self._lines = self._lines, {}
        for one in lines.values():
            if one.times:
                self._logger.log(one.level, "%s (%d times more in %d s)", one.text, one.times, SAME_LINE_S)
        if self._left_out:
            self._logger.info("%d more answers, each of a line of its own, are left out", self._left_out)
            self._left_out = 0

    def _text(self, question: Question, count: int, rule: str) -> str:
        principal, host, operation, resource, name, api, allowed = question
        return (
            f"Principal = {principal} is {'Allowed' if allowed else 'Denied'} "
            f"operation = {AclOperation(operation).name} from host = {host} "
            f"on resource = {pascal_case(AclResourceType(resource).name)}:LITERAL:{name} "
            f"for request = {self._api_name(api)} with resourceRefCount = {count} based on rule {rule}"
        )


class _Line:
    """A line that was written, and how often it came again."""

    __slots__ = ("level", "text", "times")

    def __init__(self, level: int, text: str) -> None:
        self.level = level
        self.text = text
        self.times = 0


def pascal_case(name: str) -> str:
    """Return Kafka's word for an enum's name.

    >>> pascal_case("TRANSACTIONAL_ID")
    'TransactionalId'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def acl_text(
    resource: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> str:
    """Return an entry as Kafka writes the rule that an answer is based on."""
    return (
        f"MatchingAcl(acl=StandardAcl[resourceType={AclResourceType(resource).name}, "
        f"resourceName={printable(name)}, patternType={PatternType(pattern).name}, "
        f"principal={printable(principal)}, host={printable(host)}, "
        f"operation={AclOperation(operation).name}, permissionType={AclPermissionType(permission).name}])"
    )
