"""Results of a command that come one by one: lines at once, or with `--json` one document at the end."""

from __future__ import annotations

import json


class Report:
    """Rows of one command by kind. `kinds` are the names of the lists in the document."""

    def __init__(self, *kinds: str, as_json: bool = False) -> None:
        self._rows: dict[str, list[dict[str, object]]] = {kind: [] for kind in kinds}
        self._as_json = as_json

    def add(self, kind: str, words: str, **row: object) -> None:
        """Print the words, or keep the row for the document."""
        self.say(words)
        self.keep(kind, **row)

    def keep(self, kind: str, **row: object) -> None:
        """Keep a row that has no words for the document."""
        if self._as_json:
            self._rows[kind].append(row)

    def say(self, words: str) -> None:
        """Print words that the document has no row for."""
        if not self._as_json:
            print(words, flush=True)

    def end(self, **facts: object) -> None:
        """Print the document, if there is to be one: these facts and the rows."""
        if self._as_json:
            print(json.dumps({**facts, **self._rows}, indent=2))
