"""Session: an authenticated connection, as authorization, quotas and the audit log see it. [P]"""

from __future__ import annotations

from typing import Any, Final

from service.security.principal import ANONYMOUS, USER, Principal


class Session:
    """One per connection from the end of its authentication; a reauthentication makes another one.

    `host`: textual address of the client. `expires_s`: time of the event loop at which the login ends, None
    without a lifetime. `memo`: answers of the authorizer, which it fills and drops. `shares`: limits of
    quotas, a client id, and the shares that they give it.
    """

    __slots__ = ("expires_s", "host", "listener", "memo", "principal", "protocol", "shares")

    def __init__(
        self,
        principal: Principal,
        host: str,
        listener: str,
        protocol: str,
        expires_s: float | None = None,
    ) -> None:
        self.principal = principal
        self.host = host
        self.listener = listener
        self.protocol = protocol
        self.expires_s = expires_s
        self.memo: object = None
        self.shares: tuple[Any, str, Any] | None = None

    def __repr__(self) -> str:
        return f"Session({self.principal} from {self.host} on {self.listener}, {self.protocol})"


def anonymous(host: str, listener: str) -> Session:
    """Return the session of a client of a PLAINTEXT listener."""
    return Session(ANONYMOUS, host, listener, "PLAINTEXT")


NODE_ITSELF: Final = Session(Principal(USER, ""), "127.0.0.1", "", "")
"""Session of requests that this process makes to itself, recognised by identity: no bytes from outside can
make it. It may do everything."""
