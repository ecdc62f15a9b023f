"""What the form of the records page asks for, checked. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.console.web import words
from service.console.web.asking import FROM_OFFSET, FROM_TIME, Ask
from service.console.web.pages.records import LIMITS, WHERE, Form
from service.console.web.rows import AUTO, FORMATS, Filter

_MOST: Final = 2**63 - 1


def number_of(written: str | None, otherwise: int) -> int:
    """A number from a query; `otherwise` for what is none, or none that can be meant."""
    if written is None or not written.isascii() or not written.isdigit() or len(written) > 19:
        return otherwise
    return min(int(written), _MOST)


class RecordQuery:
    """`ask` is None where no topic is named, or `problem` says what is wrong with it."""

    def __init__(self, query: Mapping[str, str]) -> None:
        where = query.get("where", "")
        form = query.get("form", "")
        most = number_of(query.get("most"), 50)
        self.form = Form(
            topic=query.get("topic", "")[:249],
            partition=min(number_of(query.get("partition"), 0), 2**31 - 1),
            where=where if where in dict(WHERE) else WHERE[0][0],
            at=query.get("at", "")[:40].strip(),
            most=most if most in LIMITS else 50,
            holds=query.get("holds", "")[:200],
            form=form if form in FORMATS else AUTO,
        )
        self.problem: str | None = None
        self.ask: Ask | None = None
        value = self._value()
        if self.form.topic and self.problem is None:
            self.ask = Ask(
                self.form.topic, self.form.partition, self.form.where, value, self.form.most,
                Filter(self.form.holds.encode("utf-8", "replace")),
            )  # fmt: skip
        self._offset = number_of(query.get("offset"), 0)
        self._part = query.get("part", "")

    def _value(self) -> int:
        form = self.form
        if form.where == FROM_OFFSET:
            value = number_of(form.at, -1)
            if value < 0:
                self.problem = f"{form.at!r} is no offset."
            return value
        if form.where == FROM_TIME:
            found = words.parse_moment(form.at)
            if found is None:
                self.problem = f"{form.at!r} is no time: 2026-01-31T12:00, or milliseconds."
                return 0
            return found
        return 0

    @property
    def download(self) -> Ask:
        """What a download asks for: records from an offset on, or the one there."""
        form = self.form
        if self._part == "lines":
            wanted = Filter(form.holds.encode("utf-8", "replace"))
            return Ask(form.topic, form.partition, FROM_OFFSET, self._offset, form.most, wanted)
        return Ask(form.topic, form.partition, FROM_OFFSET, self._offset, 1)
