"""A failing history as a person reads it: what was done and said, what was wrong, how to see it again."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.history import Outcome, Plan

_MOST_LINES = 120
_MOST_CHARACTERS = 220


def transcript(outcome: Outcome, plan: Plan, of: int, again: str | None = None) -> Iterator[str]:
    """Lines. `of`: how many acts there were before it was shrunk; `again`: what plays it once more."""
    yield f"seed {outcome.seed}: {outcome.problem}"
    yield f"  shrunk from {of} to {len(plan.acts)} acts: {', '.join(act.kind for act in plan.acts)}"
    lines = outcome.lines
    if len(lines) > _MOST_LINES:
        yield f"  … {len(lines) - _MOST_LINES} lines before …"
    for line in lines[-_MOST_LINES:]:
        yield f"  {str(line)[:_MOST_CHARACTERS]}"
    yield f"  again: {again or f'make sim SEED={outcome.seed} HISTORIES=1'}"
