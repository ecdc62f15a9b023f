"""Terraform with one provider or another, and what else `make fetch-infra` has fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TERRAFORM = ROOT / "infra" / "terraform"
BOOT = ROOT / "infra" / "boot"
CACHE = ROOT / ".cache" / "infra"
CI = os.environ.get("CI") == "true"
COMMAND = shutil.which("terraform") or next(map(str, sorted(CACHE.glob("terraform-*/terraform"))), None)
STANDIN = "standin"
AWS_1_60 = "aws-1.60.0"


def need(there: object, reason: str) -> None:
    """Skips the test, or fails it in continuous integration, where everything has to be there."""
    if not there:
        if CI:
            pytest.fail(reason)
        pytest.skip(f"{reason}; see `make fetch-infra`")


@dataclass(frozen=True)
class Terraform:
    """The command in one folder, with the providers of one mirror alone."""

    folder: Path
    env: dict[str, str]

    def __call__(self, *arguments: str, fine: tuple[int, ...] = (0,), seconds: float = 300) -> str:
        command = [COMMAND or "terraform", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert done.returncode in fine, f"{' '.join(command)} in {self.folder}:\n{done.stdout[-6000:]}"
        return done.stdout

    def planned(self, *arguments: str) -> dict[str, Any]:
        """A plan as JSON."""
        self("plan", "-no-color", "-input=false", "-out=tfplan", *arguments)
        found: dict[str, Any] = json.loads(self("show", "-json", "tfplan"))
        return found


def terraform(folder: Path, mirror: str) -> Terraform:
    """An initialised folder; its state, lock and provider stay in it, so it should be a copy."""
    need(COMMAND, "terraform is not installed")
    need((CACHE / mirror / "registry.terraform.io").is_dir(), f"the provider {mirror} was not built")
    config = folder / "mirror.tfrc"
    config.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{CACHE / mirror}"\n  }}\n}}\n'
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))}
    env |= {"TF_CLI_CONFIG_FILE": str(config), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    run = Terraform(folder, env)
    run("init", "-no-color", "-input=false", "-backend=false")
    return run


def copied(target: Path) -> Path:
    """The unchanged terraform tree, with the program that it packs, in a folder of the test's own."""
    ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*", "__pycache__")
    shutil.copytree(BOOT, target / "infra" / "boot", ignore=ignored)
    shutil.copytree(TERRAFORM, target / "infra" / "terraform", ignore=ignored)
    return target / "infra" / "terraform"
