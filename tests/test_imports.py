"""Who may import whom, read from the source, and no torch where results are only read."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("repro", "analysis", "experiments")

# Package -> what of ours it may import besides itself.
ALLOWED = {
    "repro.ops": set(),
    "repro.depth": {"repro.ops", "repro.errors"},
    "repro.model": {"repro.depth", "repro.ops", "repro.errors"},
    "repro.data": {"repro.errors"},
    "repro.runs": {"repro.errors"},
    "repro.train": {
        "repro.model",
        "repro.depth",
        "repro.ops",
        "repro.data",
        "repro.runs",
        "repro.errors",
        "repro",
    },
    "repro.bench": {
        "repro.ops",
        "repro.depth",
        "repro.model",
        "repro.train",
        "repro.runs",
        "repro.errors",
        "analysis",
    },
    "repro.probe": {
        "repro.ops",
        "repro.depth",
        "repro.model",
        "repro.data",
        "repro.train",
        "repro.runs",
        "repro.errors",
        "analysis",
    },
    "repro.convert": {
        "repro.depth",
        "repro.model",
        "repro.data",
        "repro.train",
        "repro.probe",
        "repro.runs",
        "repro.errors",
        "analysis",
    },
    "repro.conformance": {"repro.ops", "repro.depth", "repro.runs"},
    "repro.errors": set(),
    "repro": set(),
    "analysis": {"repro.runs", "repro.errors"},
    "experiments": {"analysis", "repro.runs", "repro.errors"},
}
WITHOUT_TORCH = ("repro.runs", "repro.errors", "analysis", "experiments")
TORCH = {"torch", "lightning", "triton", "torchvision", "fla", "liger_kernel"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The unit of the rule a module belongs to: repro.<package>, or the top-level package."""
    names = module.split(".")
    return ".".join(names[:2]) if names[0] == "repro" else names[0]


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports, inside functions and type checks too."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            # `from repro import depth` imports repro.depth.
            yield from (
                (node.lineno, f"{base}.{alias.name}" if base == "repro" else base) for alias in node.names
            )
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    part = part_of(module)
    found = []
    for line, name in imports(source, module, is_package):
        target = part_of(name)
        if name.split(".")[0] in OURS and target != part and target not in ALLOWED[part]:
            found.append(f"{module}:{line} imports {name}")
        if part in WITHOUT_TORCH and name.split(".")[0] in TORCH:
            found.append(f"{module}:{line} imports {name}")
    return found


def sources() -> list[Path]:
    return sorted(path for top in OURS for path in (ROOT / top).rglob("*.py"))


def test_the_import_rule_holds_in_every_file() -> None:
    found = []
    for path in sources():
        module = module_name(path)
        # A command of the suite (repro/<name>.py) puts parts together and is no part of the rule.
        if part_of(module) not in ALLOWED and path.parent == ROOT / "repro":
            continue
        assert part_of(module) in ALLOWED, f"{path}: a new package needs its line in the rule"
        found += violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    assert len(sources()) > 10
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("repro.ops.eager", "from repro.errors import ConfigError"),
        ("repro.ops.eager", "from ..depth import base"),
        ("repro.depth.attnres", "import repro.model.decoder"),
        ("repro.depth.attnres", "from repro import runs"),
        ("repro.model.decoder", "def f():\n    from repro.data import module"),
        ("repro.data.shards", "import importlib\nimportlib.import_module('repro.runs')"),
        ("repro.runs.table", "import torch"),
        ("repro.runs.table", "from torch import nn"),
        ("repro.runs.table", "import analysis.stats"),
        ("analysis.stats", "import lightning as L"),
        ("analysis.stats", "from experiments import items"),
        ("experiments.table4", "from repro.train import optim"),
    ],
)
def test_the_rule_sees(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "repro.depth.attnres",
            "from repro.ops import depth_mix\nfrom repro.depth.base import tagged\nimport torch",
        ),
        ("repro.depth.attnres", "from .base import tagged"),
        ("experiments.table4", "from analysis import stats\nfrom repro.runs import load_runs"),
    ],
)
def test_the_rule_allows(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_reading_results_never_imports_torch() -> None:
    """Every module of repro.runs, analysis and experiments, in an interpreter that has no torch."""
    modules = [
        name
        for path in sources()
        if part_of(name := module_name(path)) in WITHOUT_TORCH and not name.endswith("__main__")
    ]
    code = f"""
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(TORCH)!r}:
            raise ImportError(name + " is imported")

sys.meta_path.insert(0, NoTorch())
for name in {modules!r}:
    importlib.import_module(name)
print(len(sys.modules["repro.runs"].__all__))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {"repro.runs", "repro.runs.table", "analysis", "experiments"} <= set(modules)


def test_operations_do_not_need_triton() -> None:
    """The kernels are imported when they are first picked, not with the operations."""
    code = """
import sys
import repro.ops
print(sorted(name for name in sys.modules if name == "triton" or name.startswith("repro.ops.triton")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
