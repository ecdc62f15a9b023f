"""checkov over the unchanged HCL: whatever it finds is mended, or waived here with the reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.infra.tools import CACHE, TERRAFORM, need

TEMPLATE = "the instance has it of its launch template, which is checked for it, and on the plan"
WAIVED = {
    ("CKV_AWS_8", "aws_instance"): f"encrypted root disk: {TEMPLATE}",
    ("CKV_AWS_79", "aws_instance"): f"IMDSv2: {TEMPLATE}",
    ("CKV_AWS_126", "aws_instance"): f"detailed monitoring: {TEMPLATE}",
    ("CKV_AWS_135", "aws_instance"): f"EBS optimized: {TEMPLATE}",
    ("CKV2_AWS_41", "aws_instance"): f"instance profile: {TEMPLATE}",
    (
        "CKV_AWS_24",
        "aws_vpc_security_group_ingress_rule",
    ): "SSH is let in from a security group alone; checkov knows no referenced_security_group_id",
    (
        "CKV_AWS_18",
        "aws_s3_bucket",
    ): "access logs cost a request for each request; CloudTrail is the account's to decide",
    (
        "CKV_AWS_144",
        "aws_s3_bucket",
    ): "a second region doubles the price; replicated HEADs would not be in order",
    ("CKV_AWS_145", "aws_s3_bucket"): "`small` uses S3's own key; `production` has one of its own",
    ("CKV2_AWS_62", "aws_s3_bucket"): "nobody listens to the bucket's events",
    (
        "CKV2_AWS_11",
        "aws_vpc",
    ): "flow logs are the account's to decide; the network has no way to the Internet",
    (
        "CKV2_AWS_5",
        "aws_security_group",
    ): "`secrets` is the interface endpoint's, which checkov does not follow through its for_each",
    ("CKV_AWS_91", "aws_lb"): "a load balancer of TCP without TLS logs nothing",
}
"""Check and type of resource, so that a waiver for one hides nothing of another; and why."""


def checked(folder: Path) -> dict[str, Any]:
    found = sorted(CACHE.glob("checkov-*/.complete"))
    need(found, "checkov was not installed")
    python = str(found[-1].parent / "bin" / "python")
    command = [python, "-m", "checkov.main", "-d", str(folder), "--framework", "terraform"]
    done = subprocess.run(
        [*command, "--skip-download", "--quiet", "--compact", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "LOG_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def failed(said: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Check and type of resource -> what it says of which."""
    found = {}
    for check in said["results"]["failed_checks"]:
        resource = re.findall(r"(aws_\w+)\.", check["resource"])[-1]
        found[check["check_id"], resource] = f"{check['resource']}: {check['check_name']}"
    return found


@pytest.mark.timeout(300)
def test_checkov_finds_nothing_that_is_not_waived() -> None:
    said = checked(TERRAFORM)
    found, summary = failed(said), said["summary"]
    # A file that it cannot read it passes over: with it whatever is wrong in there.
    assert summary["parsing_errors"] == 0
    print(f"\ncheckov: {summary['passed']} checks passed, {summary['failed']} failed and are waived:")
    for (check, resource), reason in WAIVED.items():
        print(f"  {check} {resource}: {reason}")
    assert not {one: what for one, what in found.items() if one not in WAIVED}
    assert found.keys() == WAIVED.keys(), "a waiver that nothing needs any more"


@pytest.mark.timeout(300)
def test_checkov_would_find_an_open_bucket_and_an_open_volume(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        """
resource "aws_ebs_volume" "open" {
  availability_zone = "eu-central-1a"
  size              = 8
  encrypted         = false
}

resource "aws_s3_bucket_public_access_block" "open" {
  bucket            = "b"
  block_public_acls = false
}
"""
    )
    assert {"CKV_AWS_3", "CKV_AWS_53"} <= {check for check, _ in failed(checked(tmp_path))}
