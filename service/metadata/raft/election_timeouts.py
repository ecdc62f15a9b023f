"""Random election timeouts, and the back-off after lost elections. [P]"""

from __future__ import annotations

from service.base.backoff import doubled
from service.metadata.raft.roles import RaftTiming, RandomSource


class ElectionTimeouts:
    """Draws timeouts, so that voters seldom stand at the same time. ``lost``: elections since the last leader
    was known."""

    def __init__(self, timing: RaftTiming, random: RandomSource) -> None:
        self._timing = timing
        self._random = random
        self.lost = 0

    def timeout_ms(self) -> int:
        """Return a time to wait for a leader, or for the votes of an election."""
        timeout = self._timing.election_timeout_ms
        return timeout + self._random.randrange(timeout)

    def backoff_ms(self) -> int:
        """Return a random back-off after a lost election, longer after each
        (``binaryExponentialElectionBackoffMs``)."""
        timing = self._timing
        most = doubled(self.lost + 1, timing.retry_backoff_ms, timing.election_backoff_max_ms)
        return self._random.randrange(max(most, 1)) + 1
