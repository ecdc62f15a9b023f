"""A real apply and destroy, against moto, with the newest AWS provider that Go modules have: 1.60.0, of 2019.

What it does not know is taken out of the HCL by a script, from a list that is printed.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.roll.firn_roll.hands import Hands
from service.cli.main import build_parser
from tests.infra.older_provider import LACKS, copy
from tests.infra.tools import AWS_1_60, BOOT, COMMAND, TERRAFORM, terraform
from tests.support.stores import moto_server

SERVICES = ("cloudwatch", "ec2", "elb", "iam", "kms", "r53", "s3", "sts")
REGION = "eu-central-1"
REPLACED = (
    'nodes.aws_instance.node["2"]',
    'nodes.aws_volume_attachment.data["2"]',
    'bootstrap.aws_lb_target_group_attachment.node["2"]',
)


def at(endpoint: str, environment: Path) -> None:
    """Has the environment's provider speak to moto."""
    lines = [
        *(f'{key} = "test"' for key in ("access_key", "secret_key")),
        "s3_force_path_style = true",
        *(
            f"skip_{what} = true"
            for what in ("credentials_validation", "metadata_api_check", "get_ec2_platforms")
        ),
        "endpoints {",
        *(f'{service} = "{endpoint}"' for service in SERVICES),
        "}",
    ]
    (environment / "moto_override.tf").write_text('provider "aws" {\n' + "\n".join(lines) + "\n}\n")


def client(endpoint: str, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_production_is_applied_and_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = copy(TERRAFORM, tmp_path / "infra" / "terraform")
    shutil.copytree(BOOT, tmp_path / "infra" / "boot", ignore=shutil.ignore_patterns("__pycache__"))
    print("\ntaken out for the AWS provider 1.60.0:", *sorted(map(str, taken)), sep="\n  ")
    assert taken == set(LACKS), "the list names what is not there"

    environment = tmp_path / "infra/terraform/environments/production"
    with moto_server(tmp_path) as endpoint:
        at(endpoint, environment)
        run = terraform(environment, AWS_1_60)
        given = ["-var-file=terraform.tfvars.example", "-var=deletion_protection=false", "-var=key_name=null"]
        said = run("apply", "-auto-approve", "-no-color", "-input=false", *given, seconds=600)
        added = re.search(r"Apply complete! Resources: (\d+) added, 0 changed, 0 destroyed", said)
        assert added, said
        print(f"applied: {added[1]} resources")
        as_planned(endpoint, json.loads(run("output", "-json")))

        # What a second plan would change says where moto tells other things than it was told.
        again = run("plan", "-no-color", "-input=false", "-detailed-exitcode", *given, fine=(0, 2))
        changes = re.findall(r"# (\S+) (?:will|must) be", again)
        print(f"a second plan changes: {', '.join(changes) or 'nothing'}")

        # Of the zone moto tells what the old provider cannot set right, so the name that follows is left out.
        targets = [f"-target=module.{one}" for one in REPLACED]
        for name, value in {**run.env, "TF_CLI_ARGS_plan": shlex.join([*given, *targets])}.items():
            monkeypatch.setenv(name, value)
        replaced(endpoint, Hands(environment, tmp_path / "roll.json", str(COMMAND)))

        said = run("destroy", "-auto-approve", "-no-color", "-input=false", *given, seconds=600)
        destroyed = re.search(r"Destroy complete! Resources: (\d+) destroyed", said)
        assert destroyed, said
        print(f"destroyed: {destroyed[1]} resources")
        assert destroyed[1] == added[1]
        nothing_is_left(endpoint)


def as_planned(endpoint: str, outputs: dict[str, Any]) -> None:
    ec2 = client(endpoint, "ec2")
    machines = outputs["machines"]["value"]
    assert sorted(machines) == ["1", "2", "3", "c1", "c2", "c3"]
    machine = machines["1"]
    instance = ec2.describe_instances(InstanceIds=[machine["instance_id"]])["Reservations"][0]["Instances"][0]
    assert instance["Placement"]["AvailabilityZone"] == "eu-central-1a"
    volume = ec2.describe_volumes(VolumeIds=[machine["volume_id"]])["Volumes"][0]
    assert volume["Encrypted"]
    assert volume["VolumeType"] == "gp3"
    assert [(one["InstanceId"], one["Device"]) for one in volume["Attachments"]] == [
        (machine["instance_id"], "/dev/sdf")
    ]
    # The machine gets the very document that was rendered.
    got = ec2.describe_instance_attribute(InstanceId=machine["instance_id"], Attribute="userData")
    packed = base64.b64decode(got["UserData"]["Value"])
    assert len(packed) <= 16384
    assert gzip.decompress(packed).decode() == outputs["user_data"]["value"]["1"]

    # Both are what a shell would make of them.
    tunnel = shlex.split(outputs["tunnel_command"]["value"])
    assert tunnel[:2] == ["ssh", "-N"]
    assert tunnel[-1] == f"admin@{machine['instance_id']}"
    proxy = next(word for word in tunnel if word.startswith("ProxyCommand="))
    assert proxy.endswith(f"open-tunnel --region {REGION} --instance-id {machine['instance_id']}")
    console = shlex.split(outputs["console_command"]["value"])
    given = build_parser().parse_args(console[1:])
    assert (given.bootstrap, given.url) == ("127.0.0.1:9092", "s3://example-firn-archive/firn")
    assert given.metrics == [(None, "http://127.0.0.1:9464")]

    s3 = client(endpoint, "s3")
    bucket = outputs["bucket"]["value"]
    policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
    assert policy["Statement"][0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(blocked.values())

    targets = client(endpoint, "elbv2")
    group = targets.describe_target_groups()["TargetGroups"][0]["TargetGroupArn"]
    health = targets.describe_target_health(TargetGroupArn=group)["TargetHealthDescriptions"]
    brokers = {one["instance_id"] for name, one in machines.items() if not name.startswith("c")}
    assert {one["Target"]["Id"] for one in health} == brokers

    balancer = client(endpoint, "elbv2").describe_load_balancers()["LoadBalancers"][0]
    assert balancer["Type"] == "network"
    assert balancer["Scheme"] == "internal"
    assert len(balancer["AvailabilityZones"]) == 3
    zones = client(endpoint, "route53")
    zone = zones.list_hosted_zones()["HostedZones"][0]["Id"]
    names = {
        record["Name"] for record in zones.list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
    }
    hosts = {f"firn-{name}.firn.internal." for name in machines}
    assert {*hosts, "bootstrap.firn.internal."} <= names


def replaced(endpoint: str, hands: Hands) -> None:
    """A broker by infra/roll: another machine with the same name and volume, and nothing else."""
    before = hands.machines()
    ec2 = client(endpoint, "ec2")
    attached = {
        one["InstanceId"]: volume["VolumeId"]
        for volume in ec2.describe_volumes()["Volumes"]
        for one in volume["Attachments"]
        if one["Device"] == "/dev/sdf"
    }
    hands.replace("2")
    after = hands.machines()
    assert after["2"].instance_id != before["2"].instance_id
    assert {name for name in after if after[name].instance_id != before[name].instance_id} == {"2"}
    targets = client(endpoint, "elbv2")
    group = targets.describe_target_groups()["TargetGroups"][0]["TargetGroupArn"]
    health = targets.describe_target_health(TargetGroupArn=group)["TargetHealthDescriptions"]
    assert {one["Target"]["Id"] for one in health} == {after[name].instance_id for name in ("1", "2", "3")}
    kept = attached[before["2"].instance_id]
    (volume,) = ec2.describe_volumes(VolumeIds=[kept])["Volumes"]
    assert [one["InstanceId"] for one in volume["Attachments"]] == [after["2"].instance_id]
    shell = shlex.split(after["2"].ssh)
    assert (shell[0], shell[-1]) == ("ssh", f"admin@{after['2'].instance_id}")
    print(f"replaced: {before['2'].instance_id} by {after['2'].instance_id}, with {kept}")


def nothing_is_left(endpoint: str) -> None:
    ec2 = client(endpoint, "ec2")
    instances = [one for found in ec2.describe_instances()["Reservations"] for one in found["Instances"]]
    assert {one["State"]["Name"] for one in instances} <= {"terminated"}
    assert not ec2.describe_volumes()["Volumes"]
    assert not [vpc for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
    assert not client(endpoint, "s3").list_buckets()["Buckets"]
    assert not client(endpoint, "elbv2").describe_load_balancers()["LoadBalancers"]
    assert not client(endpoint, "route53").list_hosted_zones()["HostedZones"]
    assert not client(endpoint, "iam").list_roles()["Roles"]
