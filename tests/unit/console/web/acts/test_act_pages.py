"""Pages of acts, whatever those say who are shown in them."""

from __future__ import annotations

import html
import re

from service.client.admin_models import ConfigEntry
from service.console.web.acts import page
from service.console.web.acts.act import MOST_ROWS, Act, ActOutcome, ActPreview, first_rows
from service.console.web.acts.plans import ActPlan, ActState
from service.console.web.acts.routes import FORMS
from service.console.web.acts.topic_acts import DELETE_TOPIC
from service.console.web.pages import configuration
from tests.unit.console.web.test_pages import EVIL, Checked, context


class _Nothing(Act):
    event = "nothing"
    event_words = "nothing"
    verb = "Do it"

    def preview(self, cluster: object) -> ActPreview:
        raise NotImplementedError

    def carry_out(self, cluster: object, preview: ActPreview) -> ActOutcome:
        raise NotImplementedError


def a_plan(words: str, state: ActState = ActState.SHOWN, rows: int = 3) -> ActPlan:
    shown, more = first_rows([(words, words)] * rows)
    preview = ActPreview(words, (words,), ((words, words),), (words, words), shown, more, (words,) * 3)
    outcome = ActOutcome(words, (words, words), (words, f"/topic?name={page.form_link('x', a=words)}"))
    return ActPlan(
        words, words, words, DELETE_TOPIC, _Nothing(), preview, words, 0, state,
        outcome if state is ActState.DONE else None, words,
    )  # fmt: skip


def every(words: str) -> list[str]:
    """Return each page of acts with `words` wherever a name or a value may stand."""
    shown = context(words)
    found = [
        page.render_form(shown, form, {one.name: words for one in form.fields}, words, words)
        for form in FORMS
    ]
    found += [page.render_preview(shown, a_plan(words), words, words)]
    found += [page.render_result(shown, a_plan(words, state), a_plan(words), words) for state in ActState]
    found += [page.render_gone(shown), page.render_refusal(shown, words)]
    return found


def test_names_and_values_of_others_are_text_on_every_page() -> None:
    for evil, tame in zip(every(EVIL), every("tame"), strict=True):
        found = Checked(evil)
        assert found.scripts == Checked(tame).scripts
        assert all(src is not None and src.startswith("/static/") for src in found.scripts)
        # A field has what was typed, to the letter; everything else shows what does not print.
        outside = re.sub(r"<textarea[^>]*>[^<]*</textarea>|<input[^>]*>", "", evil)
        assert "\u202e" not in outside
        assert "\x00" not in outside


def test_a_field_comes_back_as_it_was_typed() -> None:
    typed = "\n\n <&\"'> \u200d é"
    for one in FORMS:
        source = page.render_form(context("x"), one, {"set": typed, "value": typed, "topic": typed}, "t")
        for area in re.findall(r"<textarea[^>]*>(.*?)</textarea>", source, re.DOTALL):
            # An HTML parser leaves out the first line feed.
            assert html.unescape(area) in ("", f"\n{typed}")


def test_a_preview_shows_a_part_of_many_rows_and_counts_the_rest() -> None:
    source = page.render_preview(context("x"), a_plan("t", rows=100_000), "csrf")
    assert source.count("<tr>") == MOST_ROWS + 1
    assert "And 99,800 more rows" in source


def test_an_act_under_way_renews_itself_and_others_do_not() -> None:
    states = {
        state: "data-live" in page.render_result(context("x"), a_plan("t", state), None, "csrf")
        for state in ActState
    }
    assert [state for state, is_live in states.items() if is_live] == [ActState.UNDER_WAY]


def test_forms_post_and_nothing_that_only_leads_somewhere_has_the_forms_token() -> None:
    for source in every("tame"):
        assert not re.findall(r'<form[^>]*method="get"', source)
        assert "csrf=" not in source
        assert "plan=" not in source


def test_a_link_that_changes_a_key_has_its_whole_value_or_none() -> None:
    """A part of a long list, sent back for the whole, would take the rest of it away."""
    for value, filled_in in (("x" * 500, "x" * 500), ("x" * 501, "")):
        one = ConfigEntry("super.users", value, 1, 2, False, False, "", ())
        found = configuration.Configuration([1], 1, None, [one], "", False, None)
        source = configuration.render(context("x"), found)
        assert f'/change/broker-settings?broker=1&amp;set=super.users%3D{filled_in}"' in source
