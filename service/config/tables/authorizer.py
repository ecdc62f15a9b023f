"""Keys of the authorizer: which one, and whom it allows everything. [P]

From Apache Kafka's `ServerConfigs` and `StandardAuthorizer`.
"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, STRING, key

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def principals(text: str) -> tuple[str, ...]:
    """Return the principals of a list with semicolons between them."""
    return tuple(one.strip() for one in text.split(";") if one.strip())


def _class_problem(text: str) -> str | None:
    if text in ("", STANDARD_AUTHORIZER):
        return None
    return f"The only authorizer is {STANDARD_AUTHORIZER}; empty: everything is allowed"


def _users_problem(text: str) -> str | None:
    for one in principals(text):
        if ":" not in one:
            return f"Expected Type:name of each principal, as in User:admin;User:node-1, not {one!r}"
    return None


AUTHORIZER: Final = (
    key(
        "authorizer.class.name", STRING, "",
        f"`{STANDARD_AUTHORIZER}`: requests are allowed by ACLs; empty: everything is allowed. See "
        "[security](security.md).",
        check=_class_problem,
    ),
    key(
        "super.users", STRING, "",
        "Principals that may do everything, as `User:admin;User:node-1`, with semicolons between them. The "
        "principals of nodes belong to them.",
        check=_users_problem,
    ),
    key(
        "allow.everyone.if.no.acl.found", BOOLEAN, False,
        "Whether everybody may do everything to a resource that no ACL is about.",
    ),
)  # fmt: skip
