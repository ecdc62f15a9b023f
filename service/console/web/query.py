"""Parser and checks of the query of the records page. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.console.web import words
from service.console.web.pages.records import LIMITS, WHERE, Form
from service.console.web.record_query import (
    ALL,
    FROM_END,
    FROM_OFFSET,
    FROM_TIME,
    RecordQuery,
    parse_positions,
)
from service.console.web.rows import AUTO, FORMATS, RecordFilter

_MOST: Final = 2**63 - 1
MOST_PARTITION: Final = 2**31 - 1


def exact_number_of(written: str | None, most: int = _MOST) -> int | None:
    """Parse a number from 0 to `most`; return None for anything else."""
    if written is None or not written.isascii() or not written.isdigit() or len(written) > 19:
        return None
    return found if (found := int(written)) <= most else None


def number_of(written: str | None, otherwise: int) -> int:
    """Parse a number of a query; return `otherwise` if it is missing or invalid."""
    found = exact_number_of(written)
    return otherwise if found is None else found


class RecordRequest:
    """Parsed query. `ask` is None if no topic is named, or if `problem` names an error.

    `download` is the same query for a download, None if that is not possible.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        where = query.get("where", "")
        form = query.get("form", "")
        most = number_of(query.get("most"), 50)
        partition = query.get("partition", "").strip()
        self.form = Form(
            topic=query.get("topic", "")[:249],
            partition="" if partition == "all" else partition[:40],
            where=where if where in dict(WHERE) else WHERE[0][0],
            at=query.get("at", "")[:40].strip(),
            most=most if most in LIMITS else 50,
            holds=query.get("holds", "")[:200],
            form=form if form in FORMATS else AUTO,
            is_tail=query.get("tail") == "1" and where in ("", FROM_END),
        )
        self.problem: str | None = None
        self.ask: RecordQuery | None = None
        self.download: RecordQuery | None = None
        number = exact_number_of(self.form.partition, MOST_PARTITION) if self.form.partition else ALL
        if number is None:
            self.problem = f"{partition[:40]!r} is not a partition."
        elif number == ALL and self.form.where == FROM_OFFSET:
            self.problem = "An offset needs a partition."
        value = self._value()
        positions = self._positions(query.get("positions", ""))
        if self.form.topic and self.problem is None and number is not None:
            wanted = RecordFilter(self.form.holds.encode("utf-8", "replace"))
            self.ask = RecordQuery(
                self.form.topic, number, self.form.where, value, self.form.most, wanted, positions
            )
            if number != ALL:
                self.download = self._download(number, query.get("offset"), query.get("part"), wanted)

    def _positions(self, written: str) -> tuple[int, ...] | None:
        if not written:
            return None
        found = parse_positions(written)
        if found is None:
            self.problem = "The positions in the address cannot be read."
        return found

    def _value(self) -> int:
        form = self.form
        if form.where == FROM_OFFSET:
            value = exact_number_of(form.at)
            if value is None:
                self.problem = f"{form.at!r} is not an offset."
                return 0
            return value
        if form.where == FROM_TIME:
            found = words.parse_moment(form.at)
            if found is None:
                self.problem = f"{form.at!r} is not a time (UTC): 2026-01-31T12:00, or milliseconds."
                return 0
            return found
        return 0

    def _download(
        self, partition: int, offset: str | None, part: str | None, wanted: RecordFilter
    ) -> RecordQuery | None:
        """Return the query of a download: records from an offset on, or the one there; None if invalid."""
        found = exact_number_of(offset)
        if found is None:
            return None
        if part == "lines":
            return RecordQuery(self.form.topic, partition, FROM_OFFSET, found, self.form.most, wanted)
        return RecordQuery(self.form.topic, partition, FROM_OFFSET, found, 1)
