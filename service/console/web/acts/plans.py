"""Plans of acts: previews that wait to be confirmed, and what became of them. [P]

A plan is kept by the console, so what is carried out is what was shown, whatever a browser sends; it belongs
to one session, and is carried out once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from service.console.web.acts.act import Act, ActForm, ActOutcome, ActPreview

MOST_PLANS: Final = 64
PLAN_MS: Final = 15 * 60_000
"""Age at which a plan is forgotten."""


class ActState(Enum):
    """States of a plan; all but the first two are ends."""

    SHOWN = "shown"
    UNDER_WAY = "under way"
    DONE = "done"
    REFUSED = "refused"
    """nothing, or only a part, was done"""
    CHANGED = "changed since the preview"
    """nothing was done"""
    UNKNOWN = "unknown"
    """no answer came: it may have been done"""


@dataclass(slots=True)
class ActPlan:
    """One preview and what became of it. `session` is who may confirm it; `request` names it in the log."""

    plan_id: str
    session: str
    request: str
    form: ActForm
    act: Act | None
    """None once it was carried out: it may hold a large record"""
    preview: ActPreview
    cluster_id: str
    made_ms: int
    state: ActState = ActState.SHOWN
    outcome: ActOutcome | None = None
    problem: str | None = None
    successor: str | None = None
    """id of the plan of the newer preview"""

    @property
    def is_over(self) -> bool:
        return self.state not in (ActState.SHOWN, ActState.UNDER_WAY)


class ActPlans:
    """Plans of one console by id: the newest `MOST_PLANS`, none older than `PLAN_MS`."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, ActPlan] = OrderedDict()

    def add(self, plan: ActPlan) -> None:
        self._forget_old(plan.made_ms)
        self._plans[plan.plan_id] = plan
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)

    def find(self, plan_id: str, session: str, now_ms: int) -> ActPlan | None:
        """Return the plan, if it is there, young enough, and of this session."""
        self._forget_old(now_ms)
        plan = self._plans.get(plan_id)
        return plan if plan is not None and plan.session == session else None

    def forget(self, session: str) -> None:
        """Drop what a session has not confirmed, as it ends."""
        for plan in [*self._plans.values()]:
            if plan.session == session and plan.state is ActState.SHOWN:
                del self._plans[plan.plan_id]

    def _forget_old(self, now_ms: int) -> None:
        for plan in [*self._plans.values()]:
            if now_ms - plan.made_ms < PLAN_MS:
                break
            del self._plans[plan.plan_id]
