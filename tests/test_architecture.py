"""Imports point down, and the plug-in packages of one layer do not know each other."""

import ast
import sys
from pathlib import Path

import pytest

import lightning_rlvr

ROOT = Path(lightning_rlvr.__file__).parent
LAYERS = {
    "types": 0, "registry": 0, "checks": 0, "composite": 0, "hashing": 0, "json_rows": 0, "memory": 0,
    "functional": 1, "tasks": 1, "distributed": 1, "stopwatch": 1, "random_states": 1,
    "calibration": 2, "credit": 2, "verify": 2, "policy": 2, "rollout": 2, "metrics": 2,
    "plugins": 3, "pipeline": 3, "data": 3, "settings": 3, "objective": 3, "record": 3, "evaluation": 3,
    "verification": 3, "optimization": 3,
    "learner": 4, "module": 4,
    "monitoring": 5,
    "__main__": 6, "cli": 6, "verify_command": 6, "messages": 6, "explain": 6, "quickstart": 6,
    "sweep": 6, "report": 6,
}  # fmt: skip


def area(module):
    return module.removeprefix("lightning_rlvr.").split(".")[0]


def imported(path):
    tree = ast.parse(path.read_text())
    hidden = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    for_types_only = {id(inner) for block in hidden for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) not in for_types_only and isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = area(".".join(path.relative_to(ROOT).with_suffix("").parts)) if path.parent != ROOT else path.stem
    if own == "__init__":
        return
    others = {area(name) for name in imported(path) if name.startswith("lightning_rlvr.")} - {own}
    higher = sorted(other for other in others if LAYERS[other] > LAYERS[own])
    beside = sorted(other for other in others if LAYERS[own] == LAYERS[other] == 2)
    assert not higher, f"{own} imports from a higher layer: {higher}"
    assert not beside, f"plug-in package {own} imports its neighbours {beside}"


def test_functional_imports_torch_only():
    allowed = {"torch", "lightning_rlvr", *sys.stdlib_module_names}
    for path in (ROOT / "functional").glob("*.py"):
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path
