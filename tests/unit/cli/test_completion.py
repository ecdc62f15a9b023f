"""Completion by Tab, from the commands' own parsers, in each shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from service.cli.completion import SCRIPTS, candidates
from service.cli.main import build_parser
from service.config.tables import BROKER_KEYS
from tests.support.processes import FIRN


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bu", ["bucket"]),
        ("config set --topic t local.retention.m", ["local.retention.ms="]),
        ("config unset --topic t local.retention.m", ["local.retention.ms"]),
        ("topic alter t --delete-config local.retention.m", ["local.retention.ms"]),
        ("cluster reassign e", ["execute"]),
        ("topic s", ["settings-known"]),
        ("topic a", ["alter", "add-partitions"]),
        ("topic de", ["describe", "delete", "delete-records"]),
        ("topic create --part", ["--partitions"]),
        ("server --log-level w", ["warning"]),
        ("topic create t --config remote.storage", ["remote.storage.enable="]),
        ("server --set firn.remote.url", ["firn.remote.url="]),
        ("completion z", ["zsh"]),
        ("completion zsh ", ["bash", "zsh", "fish"]),
        ("server --log-level info --http", []),
        ("fsck s3://", []),
        ("nonsense ", None),
    ],
)
def test_completion_offers_commands_and_options(line: str, expected: list[str] | None) -> None:
    found = candidates(build_parser(), line.split(" "))
    if expected is None:
        assert "server" in found
    else:
        assert found == expected


def test_commands_that_are_not_shown_are_not_offered() -> None:
    assert "complete" not in candidates(build_parser(), [""])


def test_every_key_of_the_configuration_is_offered() -> None:
    found = candidates(build_parser(), ["server", "--set", ""])
    assert found == [f"{key}=" for key in BROKER_KEYS]


ASK = {
    "bash": """
        source {script}
        COMP_WORDS=({firn} topic cr); COMP_CWORD=2
        _firn
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "fish": """
        source {script}
        complete -C '{firn} topic cr'
    """,
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_takes_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    subprocess.run([shell, "-n", str(script)], check=True)
    if shell not in ASK:
        return
    asked = ASK[shell].format(script=script, firn=FIRN)
    done = subprocess.run(
        [shell, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.stdout.split()[:1] == ["create"]
