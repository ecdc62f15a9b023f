"""`firn` commands in the test's own process: at one cluster, or with any words."""

from __future__ import annotations

import contextlib
import io
import subprocess

import pytest

from service.cli.main import main


class Firn:
    """Runs commands; `err` is what the last one said on stderr."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap, self.capsys = bootstrap, capsys
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """Return what a command printed that ended with this code."""
        self.capsys.readouterr()
        found = main([*words, "--bootstrap-server", self.bootstrap])
        said = self.capsys.readouterr()
        self.err = said.err
        assert found == code, said
        return said.out

    def refused(self, *words: str) -> str:
        """Return what a command said on stderr that ended with code 1."""
        self(*words, code=1)
        return self.err


def run_here(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what came of it. Who asks again and again asks so: a process of its own takes
    most of a second to start.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
