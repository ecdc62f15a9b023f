"""Makes a schema, shaped as ``terraform providers schema -json``, of cdktf's bindings of the AWS provider.

    python extract_schema.py cdktf_cdktf_provider_aws-….whl schema.json.gz

The registry that has the provider is not always in reach; PyPI has its bindings, generated from the
provider's own schema, with names, types and flags of every argument in their JavaScript.
"""

from __future__ import annotations

import collections
import gzip
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

Block = dict[str, Any]

ENTRY = re.compile(
    r'\n\s+"?(\w+)"?: \{\n\s+value: (.*?),\n\s+isBlock: (\w+),\n'
    r'\s+type: "(\w+)",\n\s+storageClassType: "(\w+)",',
    re.DOTALL,
)
COMPUTED = re.compile(
    r"// (\w+) - computed: true, optional: false, required: false\n\s+get \w+\(\) \{\n\s+return (.*?);\n"
)
NESTED = re.compile(
    r"// (\w+) - computed: \w+, optional: \w+, required: \w+\n"
    r'\s+this\._\w+ = new (\w+?)(List|OutputReference|Map|StringMap\w*)\(this, "\w+"(?:, (\w+))?\)'
)
ARGUMENT = re.compile(
    r"/\*\*((?:(?!\*/).)*?#(\w+) \w+#\w+\}(?:(?!\*/).)*?)\*/\s+readonly \w+(\??):", re.DOTALL
)
PRIMITIVES = {"string": "string", "boolean": "bool", "number": "number"}
GETTERS: list[tuple[str, Any]] = [
    ("getStringMap", ["map", "string"]),
    ("getBooleanMap", ["map", "bool"]),
    ("getNumberMap", ["map", "number"]),
    ("getAnyMap", ["map", "string"]),
    ("getNumberList", ["list", "number"]),
    ("getList", ["list", "string"]),
    ("getString", "string"),
    ("getBoolean", "bool"),
    ("getNumber", "number"),
]
DEEPEST = 12
odd: collections.Counter[str] = collections.Counter()
"""What was not understood, and taken for a string."""


def type_of(kind: str, storage: str) -> Any:
    if storage in PRIMITIVES:
        return PRIMITIVES[storage]
    if found := re.fullmatch(r"(string|boolean|number|any)(List|Map|Set)+", storage):
        inner: Any = PRIMITIVES.get(found[1], "string")
        for wrap in re.findall("List|Map", storage)[:-1]:
            inner = [wrap.lower(), inner]
        return [kind if kind in ("list", "set", "map") else "list", inner]
    odd[f"{kind} {storage}"] += 1
    return "string"


def type_of_getter(expression: str) -> Any:
    for name, kind in GETTERS:
        if name in expression:
            return ["set", kind[1]] if kind[0] == "list" and "tolist" in expression else kind
    odd[re.sub(r"'\w+'", "x", expression)] += 1
    return "string"


class Bindings:
    """One resource, data source or provider: its folder of the bindings."""

    def __init__(self, folder: Path) -> None:
        self.js = "".join(path.read_text() for path in sorted(folder.rglob("*.js")))
        declared = "".join(path.read_text() for path in sorted(folder.rglob("*.d.ts")))
        self.arguments = {
            name: {
                argument: (bool(optional), bool(re.search(r"\* \w+ block\n", doc)))
                for doc, argument, optional in ARGUMENT.findall(body)
            }
            for name, body in re.findall(
                r"export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)\n\}", declared, re.DOTALL
            )
        }
        self.entries = {
            name[0].upper() + name[1:]: ENTRY.findall(body)
            for name, body in re.findall(
                r"function (\w+)ToHclTerraform\(struct\) \{.*?const attrs = \{(.*?)\n    \};",
                self.js,
                re.DOTALL,
            )
        }
        self.classes = dict(
            re.findall(r"\nclass (\w+) extends cdktf\.\w+ \{\n(.*?)\n\}\n", self.js, re.DOTALL)
        )

    def read(self) -> tuple[str, str, Block] | None:
        """(resource, data or provider; its name; its block)."""
        name = re.search(r"terraformResourceType: '(\w+)'", self.js) or re.search(
            r'tfResourceType = "(\w+)"', self.js
        )
        if not name:
            return None
        top = re.search(
            r"synthesizeHclAttributes\(\) \{\n\s+const attrs = \{(.*?)\n        \};", self.js, re.DOTALL
        )
        if top:
            main = next(one for one, body in self.classes.items() if "synthesizeHclAttributes" in body)
        else:
            found = re.search(r"class (\w+) extends cdktf.Terraform(?:Resource|DataSource)", self.js)
            assert found
            main = found[1]
        kind = "resource"
        if "extends cdktf.TerraformDataSource" in self.js:
            kind = "data"
        elif "extends cdktf.TerraformProvider" in self.js:
            kind = "provider"
        entries = ENTRY.findall(top[1]) if top else []
        return (
            kind,
            name[1],
            self.block(self.classes[main], entries, self.arguments.get(f"{main}Config", {}), 0),
        )

    def child(self, name: str, depth: int) -> Block:
        return self.block(
            self.classes.get(f"{name}OutputReference", ""),
            self.entries.get(name, []),
            self.arguments.get(name, {}),
            depth + 1,
        )

    def object(self, name: str, depth: int) -> Any:
        """A block as the type of an attribute."""
        block = self.child(name, depth)
        members = {key: value["type"] for key, value in block["attributes"].items()}
        for key, value in block["block_types"].items():
            mode = value["nesting_mode"] if value["nesting_mode"] != "single" else "list"
            members[key] = [mode, self.object(value["_name"], depth + 1)]
        return ["object", members]

    def block(
        self, body: str, entries: list[Any], arguments: dict[str, tuple[bool, bool]], depth: int
    ) -> Block:
        attributes: Block = {}
        blocks: Block = {}
        if depth > DEEPEST:
            return {"attributes": attributes, "block_types": blocks}
        for name, value, is_block, kind, storage in entries:
            optional, documented = arguments.get(name, (True, is_block == "true"))
            flags = {"optional": True, "computed": not documented} if optional else {"required": True}
            mapper = re.search(r"\b(\w+)ToHclTerraform[,)(]", re.sub(r"cdktf\.\w+", "", value))
            if is_block == "false" or not mapper:
                attributes[name] = {"type": type_of(kind, storage), **flags}
                continue
            child = mapper[1][0].upper() + mapper[1][1:]
            single = "listMapperHcl" not in value and "hashMapperHcl" not in value
            if not documented:
                shape = self.object(child, depth)
                attributes[name] = {"type": shape if kind == "struct" else [kind, shape], **flags}
                continue
            blocks[name] = {
                "nesting_mode": "single" if kind == "struct" and single else kind,
                "block": self.child(child, depth),
                "_name": child,
                **({"max_items": 1} if single and kind != "struct" else {}),
                **({} if optional else {"min_items": 1}),
            }
        nested = {found[0]: found for found in NESTED.findall(body)}
        for name, expression in COMPUTED.findall(body):
            if name not in nested and name not in attributes and name not in blocks:
                attributes[name] = {"type": type_of_getter(expression), "computed": True}
        for name, child, wrap, as_set in nested.values():
            if name not in attributes and name not in blocks:
                mode = {"List": "set" if as_set == "true" else "list", "Map": "map"}.get(wrap, "list")
                attributes[name] = {"type": [mode, self.object(child, depth)], "computed": True}
        return {"attributes": attributes, "block_types": blocks}


def without_notes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_notes(one) for key, one in value.items() if not key.startswith("_")}
    return [without_notes(one) for one in value] if isinstance(value, list) else value


def main(wheel: str, target: str) -> None:
    schema: dict[str, Block] = {"resource": {}, "data": {}, "provider": {}}
    with tempfile.TemporaryDirectory() as work:
        with zipfile.ZipFile(wheel) as archive:
            packed = next(name for name in archive.namelist() if name.endswith(".tgz"))
            with archive.open(packed) as file, tarfile.open(fileobj=file) as tar:
                tar.extractall(work, filter="data")
        for folder in sorted(Path(work, "package/lib").iterdir()):
            if folder.is_dir() and (found := Bindings(folder).read()):
                schema[found[0]][found[1]] = without_notes(found[2])
    with gzip.open(target, "wt", 6) as out:
        json.dump(schema, out, separators=(",", ":"))
    counts = ", ".join(f"{len(blocks):,} of {kind}" for kind, blocks in schema.items())
    print(f"firn: schema of the AWS provider: {counts}; not understood: {sum(odd.values())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
