"""State that all connections of a server share: handler, limits, memory budget, and the turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from service.base.rate_limited_log import RateLimitedLog
from service.base.turn_queues import CallQueue, turn_queues
from service.base.turns import TurnTimes
from service.network.admission import Admission
from service.network.buffers import BufferPool
from service.network.connection_quotas import ConnectionQuotas
from service.network.metrics import NetworkMetrics
from service.network.request import Describe, Gone, Handler, PeerLimits, RunHandler
from service.network.request_framer import RequestFramer
from service.network.sender import SendBudget
from service.network.sendfile_prefetch import SendfilePrefetcher
from service.network.transfer_deadlines import TransferDeadlines

if TYPE_CHECKING:
    from service.network.authenticating import ListenerLogins
    from service.network.login_deadlines import LoginDeadlines

_LOG = logging.getLogger("service.network")
_SCRATCH_BYTES = 64 << 10
FULL_S: Final = 0.004
"""Age of a turn of the loop after which no more requests begin in it."""
_ALONE_S: Final = 0.002
_CROWDED_S: Final = 0.0003
"""Time for pipelined requests of one peer, while no other has some, and while others have."""


@dataclass(slots=True)
class Shared:
    """State that all connections of a server share."""

    handler: Handler
    limits: PeerLimits
    listener: str
    loop: asyncio.AbstractEventLoop
    pool: BufferPool
    admission: Admission
    counters: NetworkMetrics
    turns: TurnTimes
    describe: Describe
    on_gone: Gone | None = None
    ahead: SendfilePrefetcher | None = None
    runs: RunHandler | None = None
    """answers requests from the bytes that have arrived"""
    arrivals: ConnectionQuotas | None = None
    """limits on new connections"""
    rest: Callable[[float], None] | None = None
    """accepts nothing for some seconds"""
    logins: ListenerLogins | None = None
    """those of a listener where clients log in"""
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(_SCRATCH_BYTES)))
    warnings: RateLimitedLog = field(init=False)
    errors: RateLimitedLog = field(init=False)
    monitor: TransferDeadlines = field(init=False)
    outlet: SendBudget = field(init=False)
    calls: CallQueue = field(init=False)
    more: CallQueue = field(init=False)
    """queue of peers that had a response in this turn and have sent more"""
    deadlines: LoginDeadlines | None = field(init=False, default=None)
    """of `logins`"""
    closed: RequestFramer = field(init=False)
    """closed machine that replaces that of a closed connection"""
    now: Callable[[], float] = field(init=False)
    """seconds of the loop's clock"""
    stopping: bool = False

    def __post_init__(self) -> None:
        limits = self.limits
        self.now = self.loop.time
        queues = turn_queues(self.loop)
        self.calls, self.more = queues.calls, queues.more
        self.outlet = SendBudget(self.loop, self.turns, self.ahead)
        self.closed = RequestFramer(self.pool, limits.max_request_bytes)
        self.closed.close()
        self.monitor = TransferDeadlines(
            self.loop,
            self.calls,
            self.pool,
            limits.read_timeout_ms / 1000,
            limits.send_timeout_ms / 1000,
            self.counters,
        )
        if self.logins is not None:
            from service.network.login_deadlines import LoginDeadlines

            self.deadlines = LoginDeadlines(self.loop, self.logins.settings.timeout_ms / 1000)
        self.warnings = RateLimitedLog(_LOG, now=self.loop.time)
        self.errors = RateLimitedLog(_LOG, now=self.loop.time)

    @property
    def is_turn_full(self) -> bool:
        """True if this turn is so old that no more work should begin in it."""
        return self.now() - self.turns.began > FULL_S

    def turn_began_s(self, now_s: float) -> float:
        """Return when this turn began; `now_s` if turns are not measured."""
        began_s = self.turns.began
        return began_s if began_s < now_s else now_s

    def share_s(self, now_s: float) -> float:
        """Return how long a peer may continue with pipelined requests; negative in a full turn."""
        if now_s - self.turns.began > FULL_S:
            return -1.0
        return _CROWDED_S if self.more else _ALONE_S
