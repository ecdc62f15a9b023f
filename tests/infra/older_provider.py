"""Takes out of modern HCL what the AWS provider 1.60.0 does not know, from an explicit list, to apply it.

The HCL must be as ``terraform fmt`` leaves it: a block's or list's end is found by its indentation.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lacks:
    """A block at the top, or something in it (``block.argument``), and what takes its place."""

    kind: str
    path: str | None
    instead: str = ""

    def __str__(self) -> str:
        text = self.kind if self.path is None else f"{self.kind}: {self.path}"
        return f"{text} -> {' '.join(self.instead.split())}" if self.instead else text


LACKS = (
    Lacks("provider.aws", "default_tags"),
    Lacks("resource.aws_ec2_instance_connect_endpoint", None),
    Lacks("resource.aws_s3_bucket_lifecycle_configuration", None),
    Lacks("resource.aws_s3_bucket_ownership_controls", None),
    Lacks("resource.aws_s3_bucket_server_side_encryption_configuration", None),
    Lacks("resource.aws_s3_bucket_versioning", None),
    Lacks("resource.aws_vpc_security_group_egress_rule", None),
    Lacks("resource.aws_vpc_security_group_ingress_rule", None),
    Lacks("resource.aws_ebs_volume", "final_snapshot"),
    Lacks("resource.aws_ebs_volume", "throughput"),
    Lacks(
        "resource.aws_instance",
        "launch_template",
        """\
  ami                    = aws_launch_template.node[each.key].image_id
  instance_type          = aws_launch_template.node[each.key].instance_type
  iam_instance_profile   = var.instance_profile
  vpc_security_group_ids = aws_launch_template.node[each.key].vpc_security_group_ids
  user_data_base64       = aws_launch_template.node[each.key].user_data
""",
    ),
    Lacks("resource.aws_instance", "lifecycle"),
    Lacks("resource.aws_launch_template", "block_device_mappings.ebs.volume_type"),
    Lacks("resource.aws_launch_template", "metadata_options"),
    Lacks("resource.aws_launch_template", "update_default_version"),
    Lacks("resource.aws_lb_target_group", "preserve_client_ip"),
    Lacks("resource.aws_vpc_endpoint", "tags"),
    Lacks("resource.aws_volume_attachment", "stop_instance_before_detaching"),
)
VERSION = ('version = "~> 6.0"', 'version = "1.60.0"')


def older(text: str, lacks: Iterable[Lacks] = LACKS) -> tuple[str, set[Lacks]]:
    """The text without what is lacked, and what of it was there."""
    out: list[str] = []
    found: set[Lacks] = set()
    lines = text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        end = end_of(lines, at)
        if top := re.match(r'(resource|data|provider) "(\w+)"', lines[at]):
            block = lines[at:end]
            for lack in lacks:
                if lack.kind != f"{top[1]}.{top[2]}":
                    continue
                shorter = without(block, lack) if lack.path else []
                if shorter != block:
                    found.add(lack)
                    block = shorter
            out += block
        else:
            out += lines[at:end]
        at = end
    return "".join(out), found


def without(block: list[str], lack: Lacks) -> list[str]:
    names = (lack.path or "").split(".")
    low, high = 0, len(block)
    for depth, name in enumerate(names, 1):
        start = next(
            (i for i in range(low + 1, high) if re.match(rf"{'  ' * depth}{name}( *=| \{{)", block[i])), None
        )
        if start is None:
            return block
        low, high = start, end_of(block, start)
    return [*block[:low], *([lack.instead] if lack.instead else []), *block[high:]]


def end_of(lines: list[str], start: int) -> int:
    """The line behind the item that begins at ``start``: the one that closes it is indented as much."""
    first = lines[start].rstrip()
    indent = len(first) - len(first.lstrip())
    if not first.endswith(("{", "[", "(")):
        return start + 1
    for i in range(start + 1, len(lines)):
        if re.match(rf" {{{indent}}}[\]}})]", lines[i]):
            return i + 1
    raise ValueError(f"line {start + 1} is not closed: {first}")


def copy(source: Path, target: Path) -> set[Lacks]:
    """Copies a tree of modules and environments, and says what was taken out."""
    found: set[Lacks] = set()
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns(".terraform*", "*.tftest.hcl", "*.tfstate*")
    )
    for path in sorted(target.rglob("*.tf")):
        text, lacked = older(path.read_text("utf-8"))
        path.write_text(text.replace(*VERSION), "utf-8")
        found |= lacked
    return found
