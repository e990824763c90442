"""Dependencies point one way, and the core needs PyTorch and NumPy only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "infocnf"

# what each layer may import, besides itself
BELOW: dict[str, set[str]] = {
    "ode": set(),
    "networks": set(),
    "flows": {"ode", "networks"},
    "tolerances": {"networks"},
    "models": {"ode", "networks", "flows", "tolerances"},
    "objectives": {"ode", "networks", "flows", "tolerances", "models"},
    "matching": {"ode", "flows", "tolerances", "models"},
}
CORE = list(BELOW)
BELOW["data"] = {*CORE} - {"objectives", "matching"}
BELOW["runs"] = {*CORE, "data"}
BELOW["training"] = BELOW["evaluation"] = {*CORE, "data", "runs"}
BELOW["reports"] = {*CORE, "data", "runs", "evaluation"}
BELOW["experiments"] = {*BELOW["reports"], "reports", "training"}
BELOW["app"] = {*BELOW["reports"], "reports"}
BELOW["cli"] = {*BELOW["experiments"], "experiments", "app"}
EVERYWHERE = {"errors", "files", "random"}
ALLOWED = {"torch", "numpy", "infocnf"}


def imports(path: Path, *, deferred: bool) -> set[str]:
    """Modules that a file imports, with those inside functions or not."""
    tree = ast.parse(path.read_text())
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    found = set()
    for node in ast.walk(tree):
        if not deferred and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def files(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


def test_every_package_has_its_place_among_the_layers() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(BELOW)


@pytest.mark.parametrize("layer", BELOW)
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    for path in files(layer):
        for module in imports(path, deferred=True):
            parts = module.split(".")
            if parts[0] == "infocnf" and len(parts) > 1:
                assert parts[1] in BELOW[layer] | {layer} | EVERYWHERE, (
                    f"{path.relative_to(ROOT)} imports {module}"
                )


@pytest.mark.parametrize("layer", CORE)
def test_the_core_imports_torch_and_numpy_only(layer: str) -> None:
    for path in files(layer):
        for module in imports(path, deferred=False):
            top = module.split(".")[0]
            assert top in ALLOWED | sys.stdlib_module_names, (
                f"{path.relative_to(ROOT)} imports {module}"
            )


HIDING = """
import sys
import torch, numpy

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden")

HIDDEN = {"safetensors", "matplotlib", "scipy", "sklearn", "lightning_fabric", "torchmetrics",
          "pydantic", "typer", "rich", "pooch", "PIL", "jinja2", "gradio", "huggingface_hub",
          "torchdiffeq"}
for name in [n for n in sys.modules if n.split(".")[0] in HIDDEN]:
    del sys.modules[name]
sys.meta_path.insert(0, Hide())

from infocnf import Categorical, InfoCNF
from infocnf.objectives import likelihood_objective
import infocnf.ode, infocnf.networks, infocnf.flows, infocnf.tolerances, infocnf.matching

model = InfoCNF((2,), {"side": Categorical(2)}, hidden=(4,))
likelihood_objective(model, torch.randn(4, 2), torch.tensor([0, 1, 0, 1])).loss.backward()
print(model.eval().sample(2).shape)
"""


def test_the_core_works_with_all_extras_hidden() -> None:
    done = subprocess.run([sys.executable, "-c", HIDING], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "torch.Size([2, 2])", done.stderr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, infocnf; print('torch' in sys.modules, infocnf.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("False"), done.stderr
