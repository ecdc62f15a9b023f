"""Desk of acts: makes previews and carries them out on threads, in limited time and at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, NamedTuple, TypeVar

from service.base.errors import ConfigError, FirnError, InvariantError, RequestError, StorageError
from service.base.rate import Rate, RateLimit
from service.base.world import World
from service.client.admin import TIMEOUT, ChangingCluster
from service.client.advice import meant
from service.console.web.acts import audit
from service.console.web.acts.act import Act, ActForm, ActOutcome, ActPreview, ActWorld, may_be_done
from service.console.web.acts.plans import ActPlan, ActPlans, ActState
from service.console.web.kafka_desk import TIMEOUT_S, KafkaDesk

_log = logging.getLogger(__name__)
T = TypeVar("T")

THREADS: Final = 4
MOST_AT_ONCE: Final = 4
WAIT_S: Final = 12.0
"""Longest wait of a page for a preview, or for the end of an act, which goes on."""
ACT_TIMEOUT_S: Final = TIMEOUT.total_seconds() + 5
"""Longest silence of a broker that carries an act out: more than it takes to say that it took too long."""
ACTS: Final = RateLimit(1, 30)
"""One act a second on average, thirty at once."""
PREVIEWS: Final = RateLimit(3, 30)
TROUBLE: Final = (FirnError, OSError)


class TooManyActs(Exception):
    """More acts or previews than the console takes; `wait_s`: when there will be room."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"wait {wait_s} s")
        self.wait_s = wait_s


class _End(NamedTuple):
    """End of an act: what it did, what it would do now, or why it did not."""

    state: ActState
    outcome: ActOutcome | None = None
    newer: ActPreview | None = None
    error: BaseException | None = None


class ChangeDesk:
    """Acts of one console. Owned by the event loop."""

    def __init__(self, kafka: KafkaDesk, world: World) -> None:
        self._kafka = kafka
        self._world = world
        self._pool = world.threads.pool("console-acts", THREADS)
        self._plans = ActPlans()
        self._acts, self._previews = Rate(lambda: ACTS), Rate(lambda: PREVIEWS)
        self._at_work = 0
        self._under_way: dict[str, tuple[ActPlan, audit.SignedIn]] = {}
        self.act_world = ActWorld(world.clock.now_ms, world.random.randrange)

    def close(self) -> None:
        """End; acts that are under way are told in the log, as nobody will hear what became of them."""
        for plan, asker in [*self._under_way.values()]:
            self._end(plan, asker, _End(ActState.UNKNOWN), "the console ended")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def find(self, plan_id: str, session: str) -> ActPlan | None:
        return self._plans.find(plan_id, session, self._world.clock.monotonic_ms())

    def forget(self, session: str) -> None:
        self._plans.forget(session)

    async def preview(self, form: ActForm, act: Act, session: str) -> ActPlan:
        """Return a plan of what the act would do now. Raises `FirnError`, `OSError` and `TooManyActs`."""
        self._spend(self._previews)
        working = self._run(partial(self._look, act))
        done, _ = await asyncio.wait([working], timeout=WAIT_S)
        if not done:
            raise StorageError(f"the cluster has not answered within {WAIT_S:g} s")
        cluster_id, found = working.result()
        return self._added(form, act, session, cluster_id, found)

    def _added(self, form: ActForm, act: Act, session: str, cluster_id: str, found: ActPreview) -> ActPlan:
        new_id = self._world.new_uuid
        now_ms = self._world.clock.monotonic_ms()
        plan = ActPlan(
            new_id().hex + new_id().hex, session, new_id().hex[:12], form, act, found, cluster_id, now_ms
        )
        self._plans.add(plan)
        return plan

    async def carry_out(self, plan: ActPlan, asker: audit.SignedIn) -> None:
        """Begin to do what the plan says, unless that was begun before, and wait for its end for a while.

        What became of it is in the plan, and in the audit log. Raises `TooManyActs`.
        """
        if plan.state is not ActState.SHOWN:
            return
        self._spend(self._acts)
        working = self._run(partial(self._do, plan))
        plan.state = ActState.UNDER_WAY
        self._under_way[plan.plan_id] = plan, asker
        working.add_done_callback(partial(self._done, plan, asker))
        await asyncio.wait([working], timeout=WAIT_S)

    def _spend(self, rate: Rate) -> None:
        now_ms = self._world.clock.monotonic_ms()
        wait_ms = rate.wait_ms(now_ms)
        if wait_ms or self._at_work >= MOST_AT_ONCE:
            raise TooManyActs(max(-(-wait_ms // 1000), 1))
        rate.spend(1, now_ms)

    def _run(self, work: partial[T]) -> asyncio.Future[T]:
        self._at_work += 1
        working = asyncio.get_running_loop().run_in_executor(self._pool, work)
        working.add_done_callback(self._left)
        return working

    def _left(self, working: asyncio.Future[T]) -> None:
        self._at_work -= 1
        if not working.cancelled():
            working.exception()  # the page that waits tells it; nobody may be left to

    def _look(self, act: Act) -> tuple[str, ActPreview]:
        """Return the cluster's id and what the act would do there. Runs on a thread."""
        with self._kafka.opened(ChangingCluster, TIMEOUT_S) as cluster:
            return cluster.describe().cluster_id, act.preview(cluster)

    def _do(self, plan: ActPlan) -> _End:
        """Return what became of the plan. Runs on a thread."""
        act = plan.act
        assert act is not None
        is_begun = False
        try:
            with self._kafka.opened(ChangingCluster, ACT_TIMEOUT_S) as cluster:
                found = cluster.describe().cluster_id
                if found != plan.cluster_id:
                    raise ConfigError(f"the brokers are those of another cluster now: {found}")
                now = act.preview(cluster)
                if now.seen != plan.preview.seen:
                    return _End(ActState.CHANGED, newer=now)
                is_begun = True
                return _End(ActState.DONE, act.carry_out(cluster, plan.preview))
        except InvariantError:
            raise
        except TROUBLE as e:
            is_lost = is_begun and may_be_done(e)
            return _End(ActState.UNKNOWN if is_lost else ActState.REFUSED, error=e)

    def _done(self, plan: ActPlan, asker: audit.SignedIn, working: asyncio.Future[_End]) -> None:
        if plan.plan_id not in self._under_way:
            return  # the console has ended
        error = None if working.cancelled() else working.exception()
        if error is not None:
            _log.error("an act of the console failed", exc_info=error)
            plan.problem = "a bug of the console: see its log"
            self._end(plan, asker, _End(ActState.UNKNOWN), "a bug")
            return
        end, said = working.result(), ""
        if end.error is not None:
            plan.problem, said = error_words(end.error), _short(end.error)
        elif end.newer is not None and plan.act is not None:
            newer = self._added(plan.form, plan.act, plan.session, plan.cluster_id, end.newer)
            plan.successor = newer.plan_id
        elif end.outcome is not None and (end.outcome.problems or end.outcome.undecided):
            said = "in part"
        self._end(plan, asker, end, said)

    def _end(self, plan: ActPlan, asker: audit.SignedIn, end: _End, said: str) -> None:
        """Note the end of an act, and write its line. `said`: what the line says of it beside its state."""
        del self._under_way[plan.plan_id]
        act, items = plan.act, plan.preview.items
        assert act is not None
        if end.outcome is not None:
            items = end.outcome.items or items
        plan.state, plan.outcome = end.state, end.outcome
        # What was needed to do it may be large.
        plan.act, plan.preview = None, plan.preview._replace(rows=(), seen=None, chosen=None)
        outcome = end.state.value + (f" ({said})" if said else "")
        audit.tell(audit.ActLine(act.event, act.event_words, items, outcome, plan.request), asker)


def error_words(error: BaseException) -> str:
    """Return the text of an error in one line, Kafka's codes in words."""
    if isinstance(error, RequestError):
        text = meant(error)
    else:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _short(error: BaseException) -> str:
    """Return an error for the audit log, without what it says: a value may be in that."""
    return error.code.name.upper() if isinstance(error, RequestError) else type(error).__name__
