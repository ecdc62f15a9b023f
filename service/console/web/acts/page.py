"""Pages of acts: the form, the preview with its confirmation, the result. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.console.web.acts.act import MOST_ROWS, ActField, ActForm, ActPreview
from service.console.web.acts.plans import PLAN_MS, ActPlan, ActState
from service.console.web.frame import (
    Heading,
    PageContext,
    code,
    facts,
    field,
    live,
    notice,
    page,
    section,
    select,
    table,
)
from service.console.web.markup import Child, Markup, el, exact, link
from service.console.web.words import count

ROOT: Final = "/change/"
CONFIRM: Final = "/change/confirm"
RESULT: Final = "/change/result"
_MINUTES: Final = PLAN_MS // 60_000
_ROWS: Final = 4


def path_of(form: ActForm) -> str:
    return ROOT + form.name


def render_form(
    context: PageContext, form: ActForm, values: Mapping[str, str], token: str, problem: str | None = None
) -> str:
    """Return the form, with what was typed and why that does not work."""
    return page(
        context,
        form.title,
        form.page,
        _alert("Nothing was done. ", problem) if problem is not None else None,
        el(
            "form",
            _hidden("csrf", token),
            [_field(one, values.get(one.name, "")) for one in form.fields],
            el("p", el("button", "Preview", type="submit"), class_="buttons"),
            method="post",
            action=path_of(form),
            class_="act",
            autocomplete="off",
        ),
        lead=form.lead,
    )


def _field(one: ActField, value: str) -> Markup:
    control: Markup
    if one.kind == "choice":
        control = select(one.name, value, [(key, words) for key, words in one.options])
    elif one.kind == "lines":
        control = el(
            "textarea", exact(value), name=one.name, rows=_ROWS, maxlength=one.most, spellcheck="false"
        )
    else:
        control = el(
            "input", type="text", name=one.name, value=exact(value), maxlength=one.most,
            required=one.required, inputmode="numeric" if one.kind == "number" else None, spellcheck="false",
        )  # fmt: skip
    hint = [" ", el("span", one.hint, class_="hint")] if one.hint else None
    return field([one.label, hint], control)


def render_preview(context: PageContext, plan: ActPlan, token: str, problem: str | None = None) -> str:
    """Return what the act would do, with the form that confirms it."""
    return page(
        context,
        plan.form.title,
        plan.form.page,
        _alert("Nothing was done. ", problem) if problem is not None else None,
        _preview(plan.preview),
        _confirmation(plan, token),
        lead=f"A preview: nothing has been done yet. It can be confirmed for {_MINUTES} minutes.",
    )


def _preview(preview: ActPreview) -> list[Child]:
    parts: list[Child] = [facts(*preview.facts)] if preview.facts else []
    parts += [notice("warn", note) for note in preview.notes[:MOST_ROWS]]
    if preview.rows:
        head = [Heading(title) for title in preview.head]
        rows = [list(row) for row in preview.rows]
        parts.append(el("div", table(head, rows, caption="What would change"), class_="after"))
    if preview.more:
        parts.append(notice("", f"And {count(preview.more)} more rows, which are not shown."))
    return parts


def _confirmation(plan: ActPlan, token: str) -> Markup:
    assert plan.act is not None
    return el(
        "form",
        _hidden("csrf", token),
        _hidden("plan", plan.plan_id),
        field(
            ["To confirm, type ", code(plan.preview.word)],
            el("input", type="text", name="typed", required=True, autofocus=True, spellcheck="false"),
        ),
        el(
            "p",
            el("button", plan.act.verb, type="submit", class_="danger"),
            el("a", "Cancel", href=plan.form.page),
            class_="buttons",
        ),
        method="post",
        action=CONFIRM,
        class_="act",
        autocomplete="off",
    )


def render_result(context: PageContext, plan: ActPlan, newer: ActPlan | None, token: str) -> str:
    """Return what became of a plan; `newer` is the plan to confirm in its place, if it has changed."""
    parts: list[Child]
    if plan.state is ActState.DONE and plan.outcome is not None:
        done = plan.outcome
        parts = [notice("good", done.words)]
        parts += [_alert("Refused: ", one) for one in done.problems]
        parts += [_alert("It may have been done: ", one) for one in done.undecided]
        if done.link is not None:
            parts.append(el("p", el("a", done.link[0], href=done.link[1])))
    elif plan.state is ActState.CHANGED:
        parts = [_alert("Nothing was done: ", "it is not any more as the preview showed it.")]
        if newer is not None and newer.state is ActState.SHOWN:
            parts.append(
                section("What it would do now", _preview(newer.preview), _confirmation(newer, token))
            )
    elif plan.state is ActState.UNKNOWN:
        parts = [
            _alert("No answer: ", f"it may have been done. Look before you try it again. {plan.problem}")
        ]
    elif plan.state is ActState.UNDER_WAY:
        # The script replaces the page once this part is gone.
        parts = [live("act", notice("", "It is under way. This page tells what becomes of it."))]
    else:
        parts = [_alert("It was not done: ", plan.problem or "")]
    again = el("p", el("a", f"{plan.form.title} again", href=path_of(plan.form)))
    request = el(
        "p", "Request ", code(plan.request), " in the log. It is done once, however often it is sent."
    )
    return page(
        context,
        plan.form.title,
        plan.form.page,
        el("div", parts, class_="result"),
        again if plan.is_over and newer is None else None,
        el("div", request, class_="note"),
    )


def render_gone(context: PageContext) -> str:
    """Return the page of a plan that is not there: old, of another session, or never made."""
    words = (
        f"A preview and its result are kept for {_MINUTES} minutes, for whoever asked for them. Nothing was"
        " done by this; what was done before is in the log."
    )
    return page(context, "No such preview", "", notice("bad", words))


def render_refusal(context: PageContext, why: str) -> str:
    return page(context, "Not done", "", _alert("Nothing was done: ", why))


def form_link(form: str, /, **values: str | int | None) -> str:
    """Return the path of the form of this name, with values filled in."""
    return link(ROOT + form, **values)


def _alert(what: str, why: str) -> Markup:
    return el("p", el("b", what), why, class_="notice bad", role="alert")


def _hidden(name: str, value: str) -> Markup:
    return el("input", type="hidden", name=name, value=value)
