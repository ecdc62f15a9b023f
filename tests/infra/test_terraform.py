"""The unchanged HCL, for the AWS provider 6.x, on a stand-in that serves that provider's schema.

Names, types, references and what is planned are checked as with the real one; what AWS would refuse is not.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.infra.tools import COMMAND, STANDIN, TERRAFORM, copied, need, terraform

FOLDERS = sorted(str(path.parent.relative_to(TERRAFORM)) for path in TERRAFORM.glob("*/*/versions.tf"))
TESTED = sorted({str(path.parents[1].relative_to(TERRAFORM)) for path in TERRAFORM.rglob("*.tftest.hcl")})


def test_everything_is_formatted() -> None:
    need(COMMAND, "terraform is not installed")
    done = subprocess.run(
        [str(COMMAND), "fmt", "-check", "-recursive", "-diff", str(TERRAFORM)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("terraform"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_valid(tree: Path, folder: str) -> None:
    said = json.loads(terraform(tree / folder, STANDIN)("validate", "-json", fine=(0, 1)))
    assert said["valid"], said["diagnostics"]
    assert said["warning_count"] == 0, said["diagnostics"]


@pytest.mark.parametrize("folder", TESTED)
def test_what_is_planned_is_what_was_meant(tree: Path, folder: str) -> None:
    said = terraform(tree / folder, STANDIN)("test", "-no-color")
    passed = re.search(r"Success! (\d+) passed, 0 failed", said)
    assert passed, said
    print(f"\n{folder}: {passed[1]} plans are as meant")


@pytest.mark.parametrize("environment", ["production", "small"])
def test_an_environment_is_planned_from_its_example(tree: Path, environment: str) -> None:
    run = terraform(tree / "environments" / environment, STANDIN)
    plan = run.planned("-var-file=terraform.tfvars.example")
    planned = [
        change["type"] for change in plan["resource_changes"] if change["change"]["actions"] == ["create"]
    ]
    print(f"\n{environment}: {len(planned)} resources planned, of {len(set(planned))} types")
    assert {"aws_instance", "aws_ebs_volume", "aws_s3_bucket", "aws_iam_role", "aws_route53_record"} <= set(
        planned
    )
    assert ("aws_lb" in planned) == (environment == "production")
    # Whoever only tries things out must not meet a public address or an open port.
    for change in plan["resource_changes"]:
        after = change["change"]["after"]
        assert not after.get("associate_public_ip_address"), change["address"]
        if change["type"] == "aws_vpc_security_group_ingress_rule":
            assert after.get("cidr_ipv4") != "0.0.0.0/0", change["address"]


MISTAKES = {
    "an argument that does not exist": ("modules/nodes/main.tf", "throughput ", "throughputs "),
    "an argument of the provider before": (
        "modules/archive/main.tf",
        "  force_destroy = false\n",
        '  force_destroy = false\n  acl = "private"\n  server_side_encryption {\n  }\n',
    ),
    "a resource that does not exist": ("modules/bootstrap/main.tf", '"aws_lb" "', '"aws_network_lb" "'),
    "a reference to nothing": (
        "modules/nodes/outputs.tf",
        "aws_instance.node[m].id",
        "aws_instance.machine[m].id",
    ),
    "an argument that is missing": (
        "modules/nodes/main.tf",
        "  availability_zone = each.value.zone\n",
        "",
    ),
    "a number that is none": (
        "modules/bootstrap/main.tf",
        "interval            = 10",
        'interval            = "ten"',
    ),
    "an attribute that is read-only": (
        "modules/network/main.tf",
        "  enable_dns_support   = true\n",
        '  enable_dns_support   = true\n  arn = "x"\n',
    ),
    "a block too many": (
        "modules/nodes/main.tf",
        "  monitoring {\n    enabled = true\n  }\n",
        "  monitoring {\n    enabled = true\n  }\n  monitoring {\n    enabled = true\n  }\n",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    """Or the checks above would prove nothing."""
    tree = copied(tmp_path)
    file, right, wrong = MISTAKES[mistake]
    text = (tree / file).read_text()
    assert right in text
    (tree / file).write_text(text.replace(right, wrong, 1))
    said = json.loads(terraform(tree / Path(file).parent, STANDIN)("validate", "-json", fine=(0, 1)))
    assert not said["valid"], mistake
