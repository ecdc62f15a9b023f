"""Running commands, waiting for conditions, saying what is done."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence


class Failed(Exception):
    """A step that did not do what it had to."""


def say(text: str) -> None:
    print(f"try-image: {text}", flush=True)


def run(
    *command: str, seconds: float = 120, fine: Sequence[int] = (0,), text: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Run a command; return what it prints on both ways. Raises `Failed` for another exit code."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=seconds, input=text if text is not None else "", env=environ, check=False,
    )  # fmt: skip
    if done.returncode not in fine:
        raise Failed(f"{' '.join(command)[:300]}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def wait_for(what: str, condition: Callable[[], object], seconds: float = 60) -> float:
    """Wait until a condition holds; return how long that took. Raises `Failed`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise Failed(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.1)
    return time.monotonic() - begun


def need(condition: object, what: str) -> None:
    if not condition:
        raise Failed(what)
