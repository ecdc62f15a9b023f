"""Plans of acts: kept for a session, for a while, and not too many."""

from __future__ import annotations

from typing import cast

from service.console.web.acts.act import Act, ActPreview
from service.console.web.acts.plans import MOST_PLANS, PLAN_MS, ActPlan, ActPlans, ActState
from service.console.web.acts.topic_acts import DELETE_TOPIC


def plan(plan_id: str, session: str = "s", made_ms: int = 0) -> ActPlan:
    return ActPlan(
        plan_id, session, "r", DELETE_TOPIC, cast("Act", None), ActPreview("t", ("t",)), "cluster", made_ms
    )


def test_a_plan_belongs_to_its_session_and_grows_old() -> None:
    plans = ActPlans()
    plans.add(plan("a"))
    assert plans.find("a", "s", PLAN_MS - 1) is not None
    assert plans.find("a", "other", 0) is None
    assert plans.find("b", "s", 0) is None
    assert plans.find("a", "s", PLAN_MS) is None
    assert plans.find("a", "s", 0) is None


def test_the_newest_plans_stay() -> None:
    plans = ActPlans()
    for n in range(MOST_PLANS + 1):
        plans.add(plan(str(n)))
    assert plans.find("0", "s", 0) is None
    assert plans.find("1", "s", 0) is not None


def test_a_session_that_ends_leaves_no_preview_but_what_was_begun() -> None:
    plans = ActPlans()
    begun = plan("begun")
    begun.state = ActState.UNDER_WAY
    for one in (plan("mine"), plan("theirs", "t"), begun):
        plans.add(one)
    plans.forget("s")
    assert plans.find("mine", "s", 0) is None
    assert plans.find("theirs", "t", 0) is not None
    assert plans.find("begun", "s", 0) is begun
