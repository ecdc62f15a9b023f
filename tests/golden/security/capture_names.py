"""Asks Java for names of subjects, and for what mapping rules make of names.

``python -m tests.golden.security.capture_names`` writes both files.
"""

from __future__ import annotations

import json
import random

from tests.support.subjects import (
    GOLDEN,
    KNOWN,
    NAMES,
    OTHERS,
    PIECES,
    RULES,
    TAGS,
    ask_java,
    attribute,
    drawn_subject,
    name_line,
    rule_line,
    subject,
)


def main() -> None:
    subjects = [subject(), subject([attribute("2.5.4.3", b"alice")])]
    subjects += [subject([attribute(kind, b"x y")]) for kind in (*KNOWN, *OTHERS)]
    subjects += [subject([attribute("2.5.4.3", piece.encode() + b"a" + piece.encode())]) for piece in PIECES]
    subjects += [subject([attribute("2.5.4.10", b"\0A", tag)]) for tag in TAGS]
    subjects += [drawn_subject(random.Random(seed)) for seed in range(200)]
    names = ask_java(name_line(one) for one in subjects)
    _write("names.json", [[der.hex(), name] for der, name in zip(subjects, names, strict=True)])
    cases = [(rules, name) for rules in RULES for name in NAMES]
    mapped = ask_java(rule_line(*case) for case in cases)
    _write("rules.json", [[*case, found] for case, found in zip(cases, mapped, strict=True)])


def _write(name: str, rows: list[list[str | None]]) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    (GOLDEN / name).write_text(f"[\n{lines}\n]\n", "ascii")


if __name__ == "__main__":
    main()
