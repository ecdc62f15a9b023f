"""A loop over partitions or keys goes on where one of them fails.

Looks at the rooms that do things for many partitions: a loop there that asks the object store, or calls a
function of its module that does, catches what that raises inside of the loop, or stands in `ENDS` with the
reason why its first failure may end it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import parsed, statements

SERVICE = Path(__file__).parent.parent / "service"
ROOMS = ("tiering", "node", "replicas", "controller_client", "serving")
READS = {"get", "get_range", "get_suffix", "get_tagged", "head", "list"}
WRITES = {"put", "put_stream", "put_if_absent", "put_if_match", "delete"}
CHAINS = {"read_head", "load", "page", "write_head", "append", "drop"}
POOL = {"run", "watch"}
RECEIVERS = {"store": READS | WRITES, "chains": CHAINS, "pool": POOL}

ENDS = {
    "tiering/chain.py:append": "the pages of one version: it cannot be written without any of them",
    "tiering/chain.py:replace": "the pages of one version, as in `append`",
    "tiering/rewriting/run_source.py:batches": "the blocks of one segment: they are needed whole",
    "tiering/rewriting/sample_check.py:check": "the objects of one report, which is published whole or not",
    "tiering/rewriting/sample_check.py:_compare": "the parts of one block",
    "tiering/prefix_fence.py:update_cluster": "tries again at one object, `cluster.json`",
    "tiering/bucket_maintenance.py:_others_ahead": "`_doubtful_heads` goes on after each HEAD",
    "replicas/cut_tails.py:_segment_runs": "the blocks of one segment: the records are needed whole",
    "tiering/erasing/bucket_work.py:_carry_out": "the passes over one chain; `_try` catches what they meet",
    "tiering/erasing/bucket_work.py:_pass": "one chain, part by part; `_try` catches what it meets",
    "tiering/erasing/order_keeper.py:_judge_cut": "the tails of one cut, which is clean if all of them are",
    "tiering/erasing/order_keeper.py:_judge_old_cuts": "the tails of all cuts, as in `_judge_cut`",
    "tiering/erasing/remains.py:_live": "the chains of one order, which waits for all of them",
    "tiering/erasing/remains.py:what_remains": "the remains of one order, which waits for all of them",
    "tiering/sweeper.py:_child_at": "goes down the pages of one key, and is called within a handler",
    "tiering/sweeper.py:_sweep_dead": "`_delete` notes what cannot be deleted, and goes on",
    "tiering/sweeper.py:sweep": "without the listing there is no next chunk; each catches what it meets",
}
"""module:function of a loop whose first failure ends it: why nobody else waits for the rest."""

Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Function = ast.FunctionDef | ast.AsyncFunctionDef


def asks_the_store(call: ast.Call) -> bool:
    """`self._store.delete(…)`, `context.chains.read_head(…)`, `self._pool.run(…)`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    receiver = call.func.value
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return call.func.attr in RECEIVERS.get(name.lstrip("_"), ())


def called(call: ast.Call) -> str:
    """The name of a function of the module, or of a method of the same object; none for all others."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    is_own = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "self"
    return call.func.attr if is_own and isinstance(call.func, ast.Attribute) else ""


def uncaught(node: ast.AST) -> Iterator[ast.Call]:
    """Calls below `node` that no handler below `node` stands around, but for handlers that raise again."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Try) and any(
            not isinstance(one.body[-1], ast.Raise) for one in child.handlers
        ):
            for part in (*child.handlers, *child.orelse, *child.finalbody):
                yield from uncaught(part)
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from uncaught(child)


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in statements(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def failing(tree: ast.Module) -> set[str]:
    """Functions of a module out of which an error of the store comes."""
    found: set[str] = set()
    while True:
        more = {
            one.name
            for one in functions(tree)
            if any(asks_the_store(call) or called(call) in found for call in uncaught(one))
        }
        if more <= found:
            return found
        found |= more


def repeated(loop: Loop) -> list[ast.stmt]:
    """What is done once for each turn of `loop`."""
    if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
        return loop.body
    parts = (loop.key, loop.value) if isinstance(loop, ast.DictComp) else (loop.elt,)
    return [ast.Expr(part) for part in parts]


def ended_by_one(tree: ast.Module) -> set[str]:
    """Functions with a loop that an error of the store ends."""
    risky = failing(tree)
    return {
        function.name
        for function in functions(tree)
        for loop in ast.walk(function)
        if isinstance(loop, Loop)
        for call in uncaught(ast.Module(repeated(loop), []))
        if asks_the_store(call) or called(call) in risky
    }


def modules() -> dict[str, ast.Module]:
    assert all((SERVICE / room).is_dir() for room in ROOMS)
    paths = [path for room in ROOMS for path in sorted((SERVICE / room).rglob("*.py"))]
    return {path.relative_to(SERVICE).as_posix(): parsed(path) for path in paths}


def test_no_loop_over_partitions_or_keys_is_ended_by_one_of_them() -> None:
    found = {f"{name}:{function}" for name, tree in modules().items() for function in ended_by_one(tree)}
    assert found - set(ENDS) == set(), "catch it inside of the loop, or say in ENDS why it may end it"
    assert set(ENDS) - found == set(), "these stand in ENDS for nothing"


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("for key in keys:\n  self._store.delete([key])", True),
        ("for key in keys:\n  try:\n    self._one(key)\n  except StorageError:\n    n += 1", False),
        ("for key in keys:\n  try:\n    self._one(key)\n  except StorageError:\n    raise", True),
        ("try:\n  for key in keys:\n    self._store.delete([key])\nexcept StorageError:\n  pass", True),
        ("while due:\n  await self._pool.run(call)", True),
        ("sizes = [tools.store.head(key).size for key in keys]", True),
        ("for key in keys:\n  self._one(key)", True),
        ("for key in self._store.list(''):\n  take(key)", False),
        ("for key in keys:\n  try:\n    pass\n  except ValueError:\n    self._chains.read_head(tip)", True),
    ],
)  # fmt: skip
def test_the_lint_finds_what_it_is_for(source: str, is_found: bool) -> None:
    body = "\n".join(f"    {line}" for line in source.splitlines())
    one = "    def _one(self, key):\n        self._store.delete([key])\n"
    tree = ast.parse(f"class C:\n  async def f(self):\n{body}\n" + one.replace("    def", "  def", 1))
    assert (ended_by_one(tree) == {"f"}) is is_found
