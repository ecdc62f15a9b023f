"""The unchanged HCL, for the AWS provider 6.x, on a stand-in that serves that provider's schema.

Names, types, references and what is planned are checked as with the real one; what AWS would refuse is not.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.boot.firn_boot.document import OURS, SECURED
from service.inspect.bucket_create import OLD_VERSION_DAYS, UPLOAD_DAYS, lifecycle, tls_only
from service.inspect.bucket_policy import least_policy
from tests.infra.tools import BOOT, COMMAND, STANDIN, TERRAFORM, Terraform, copied, need, terraform

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
def test_terraform_validates(tree: Path, folder: str) -> None:
    said = json.loads(terraform(tree / folder, STANDIN)("validate", "-json", fine=(0, 1)))
    assert said["valid"], said["diagnostics"]
    assert said["warning_count"] == 0, said["diagnostics"]


@pytest.mark.parametrize("folder", TESTED)
def test_terraform_plans_pass_their_tests(tree: Path, folder: str) -> None:
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


def planned_values(plan: dict[str, Any], address: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        change["change"]["after"] for change in plan["resource_changes"] if change["address"] == address
    )
    return found


def with_variables(folder: Path, **variables: Any) -> Terraform:
    (folder / "given.auto.tfvars.json").write_text(json.dumps(variables))
    (folder / "provider.tf").write_text('provider "aws" {\n  region = "eu-central-1"\n}\n')
    return terraform(folder, STANDIN)


@pytest.mark.parametrize("key", [None, "arn:aws:kms:eu-central-1:123456789012:key/1"])
def test_machines_may_do_what_firn_says_that_it_needs(tmp_path: Path, key: str | None) -> None:
    """One truth in two languages: `firn bucket policy`, and the module; besides packages to install."""
    folder = copied(tmp_path) / "modules" / "identity"
    arn = "arn:aws:s3:::example-firn-archive"
    run = with_variables(
        folder, name="firn", archive_arn=arn, prefix="some/firn", kms=key is not None, kms_key_arn=key
    )
    plan = run.planned()
    statements = [
        statement
        for change in plan["resource_changes"]
        if change["type"] == "aws_iam_role_policy"
        for statement in json.loads(change["change"]["after"]["policy"])["Statement"]
    ]
    packages = [one for one in statements if one["Sid"] == "Packages"]
    assert [(one["Action"], one["Resource"]) for one in packages] == [
        (["s3:GetObject"], [f"{arn}/packages/*"])
    ]
    statements.remove(packages[0])
    assert statements == least_policy("example-firn-archive", "some/firn", kms_key=key)["Statement"]


def test_the_bucket_is_set_as_firn_bucket_create_sets_one(tmp_path: Path) -> None:
    run = with_variables(copied(tmp_path) / "modules" / "archive", bucket="example-firn-archive")
    plan = run.planned()
    policy = planned_values(plan, "aws_s3_bucket_policy.archive")["policy"]
    assert json.loads(policy) == json.loads(tls_only("example-firn-archive", "aws"))
    made = lifecycle()["Rules"][0]
    rules = planned_values(plan, "aws_s3_bucket_lifecycle_configuration.archive")["rule"]
    assert [one["status"] for one in rules] == ["Enabled"] * 2
    said = {
        name: value[0] for rule in rules for name, value in rule.items() if value and isinstance(value, list)
    }
    assert set(said) == {
        "abort_incomplete_multipart_upload",
        "noncurrent_version_expiration",
        "expiration",
        "filter",
    }
    assert said["abort_incomplete_multipart_upload"]["days_after_initiation"] == UPLOAD_DAYS
    assert said["noncurrent_version_expiration"]["noncurrent_days"] == OLD_VERSION_DAYS
    # Of what is current, markers of deletes alone go, once nothing is behind them.
    assert {name for name, value in said["expiration"].items() if value} == {"expired_object_delete_marker"}
    assert made["Expiration"] == {"ExpiredObjectDeleteMarker": True}
    blocked = planned_values(plan, "aws_s3_bucket_public_access_block.archive")
    assert all(blocked[name] for name in ("block_public_acls", "block_public_policy", "ignore_public_acls"))


def test_terraform_and_the_machine_refuse_the_same_properties() -> None:
    """What the machine would refuse at its first start, when nobody looks."""
    text = (TERRAFORM / "modules" / "nodes" / "variables.tf").read_text("utf-8")
    refused = re.findall(r"setintersection\(keys\(var\.properties\), (\[.*\])\)", text)
    assert [json.loads(one) for one in refused] == [list(OURS), list(SECURED)]


def bare(text: str) -> str:
    """What Python makes of a module, without what it says of itself and without types."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for one in (*node.args.args, *node.args.kwonlyargs, node.args.vararg):
                if one is not None:
                    one.annotation = None
        if isinstance(body := getattr(node, "body", None), list):
            kept = [
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
            node.body = kept  # type: ignore[attr-defined]
    return ast.dump(tree)


def test_the_program_that_comes_along_is_the_program(tree: Path) -> None:
    run = terraform(tree / "environments" / "production", STANDIN)
    plan = run.planned("-var-file=terraform.tfvars.example")
    told = plan["planned_values"]["outputs"]["user_data"]["value"]["1"]
    packed = {
        Path(one["path"]).name: one["content"]
        for one in json.loads(told.partition("\n")[2])["write_files"]
        if one["path"].startswith("/usr/local/lib/firn/firn_boot/")
    }
    modules = {path.name: path.read_text("utf-8") for path in (BOOT / "firn_boot").glob("*.py")}
    assert packed.keys() == modules.keys()
    assert [name for name in modules if bare(packed[name]) != bare(modules[name])] == []
    assert sum(map(len, packed.values())) < 0.8 * sum(map(len, modules.values()))
    # What is left is for names and properties that are longer than those of the example.
    assert len(gzip.compress(told.encode())) <= 16_384 - 200


def test_terraform_reads_no_secret_and_makes_none() -> None:
    """So its state has no value of any."""
    text = "".join(path.read_text("utf-8") for path in TERRAFORM.rglob("*.tf"))
    kinds = re.findall(r'(?m)^(?:data|ephemeral|resource) "(\w+)"', text)
    assert len(kinds) > 40
    assert [one for one in kinds if "secret" in one or "ssm" in one or "random" in one] == []


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
