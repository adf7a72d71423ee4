"""The package installs what the tree holds, leans on little, and imports downwards only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "companion"
KERNELS = ROOT / "kernels" / "companion_kernels"

# The house: a room may import from its own floor and from those below, protocols from nothing. A new module at the top
# of the package states its floor here.
FLOORS = {
    1: "protocols arrays acceptance accepted_length calibration ceiling collision compact costs kernels metrics "
    "planning propositions parallel provenance resampling roofline rounds",
    2: "engine phase scheduling",
    3: "drafters exact forced_exit __init__",
    4: "book experiments figures figures_ablations figures_acceptance figures_anchors figures_bench "
    "figures_calibration figures_ceiling figures_drafters figures_drafting figures_hook figures_load figures_phase "
    "figures_probe figures_scheduling figures_serving figures_signals figures_story figures_training highlight "
    "interactive serving tables training",
    5: "cli __main__",
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms.split()}

LEAN_FLOORS = (1, 2, 3)
LEAN = {"torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "scipy", "tqdm"}
HEAVY = ["pandas", "pydantic", "typer", "rich", "matplotlib", "papermill", "nbformat", "IPython"]


def modules() -> dict[str, Path]:
    """Importable name -> file, for the whole package."""
    found = {}
    for base, name in ((SOURCE, "companion"), (KERNELS, "companion.kernels")):
        for path in sorted(base.rglob("*.py")):
            parts = [name, *path.relative_to(base).with_suffix("").parts]
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


def room(module: str) -> str:
    """companion.engine.cache -> engine; the package itself -> __init__."""
    return [*module.split("."), "__init__"][1]


def floor(module: str) -> int:
    """The module's floor; 0 for one that `test_every_room_has_a_floor` complains about."""
    return FLOOR_OF.get(room(module), 0)


def imports(path: Path, name: str, *, top_level_only: bool = False) -> Iterator[str]:
    """Absolute names of what a file imports; ``from companion import x`` gives companion.x when x is a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _outside_functions(tree) if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            base = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            yield from (full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names)


def _outside_functions(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


MODULES = modules()


def test_packages_listed_in_pyproject_equal_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    in_tree = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
    assert sorted(listed) == in_tree
    assert len(listed) == len(set(listed))
    without_init = {path.parent for path in MODULES.values()} - {
        path.parent for path in MODULES.values() if path.name == "__init__.py"
    }
    assert not without_init, f"folders with modules and without __init__.py are not installed: {without_init}"


def test_data_files_beside_modules_are_installed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    covered = {
        path
        for package, patterns in data.items()
        for pattern in patterns
        for path in MODULES[package].parent.glob(pattern)
    }
    present = {
        path
        for base in (SOURCE, KERNELS)
        for path in base.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert covered == present


def test_kernels_folder_does_not_shadow_the_library_of_that_name() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("name", sorted({room(name) for name in MODULES}))
def test_every_room_has_a_floor(name: str) -> None:
    assert name in FLOOR_OF, f"companion.{name} is new: say in FLOORS of {Path(__file__).name} which floor it is on"


def test_imports_run_downwards() -> None:
    upwards = [
        f"{name} (floor {floor(name)}) imports {target} (floor {floor(target)})"
        for name, path in MODULES.items()
        for target in imports(path, name)
        if target in MODULES and floor(target) > floor(name)
    ]
    assert not upwards, "\n".join(upwards)


def test_rooms_do_not_import_each_other_in_circles() -> None:
    edges: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        targets = {room(target) for target in imports(path, name) if target in MODULES}
        edges.setdefault(room(name), set()).update(targets - {room(name)})
    assert not edges["protocols"], f"protocols imports {edges['protocols']}; it imports nothing of ours"
    settled: set[str] = set()
    while ready := {name for name in edges if name not in settled and edges[name] <= settled}:
        settled |= ready
    assert settled == set(edges), (
        f"rooms in or above a circle: { {name: edges[name] - settled for name in edges if name not in settled} }"
    )


def test_lower_floors_name_only_the_lean_dependencies() -> None:
    allowed = LEAN | set(sys.stdlib_module_names) | {"companion"}
    beyond = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if floor(name) in LEAN_FLOORS
        for target in imports(path, name, top_level_only=True)
        if target.partition(".")[0] not in allowed
    ]
    assert not beyond, "\n".join(beyond)


@pytest.mark.parametrize("blocked", [HEAVY, [*HEAVY, "triton"]], ids=["lean", "lean-without-triton"])
def test_lower_floors_import_without_the_rest_installed(blocked: list[str]) -> None:
    lean = [name for name in MODULES if floor(name) in LEAN_FLOORS]
    program = "\n".join(
        [
            "import sys",
            f"sys.modules.update(dict.fromkeys({blocked!r}))  # None: import fails as if it were not installed",
            *(f"import {name}" for name in lean),
        ]
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]


def test_no_path_of_a_machine_and_no_registry_in_what_is_published() -> None:
    """What only exists on the machine of whoever wrote it does not belong in the repository: nor does its registry."""
    folders = [path for path in (ROOT, ROOT.parent, Path.home(), Path(tempfile.gettempdir())) if path.parent != path]
    suspect = re.compile(
        "|".join(re.escape(f"{path}/") for path in folders) + r"|https?://\S+/simple\b|--(extra-)?index-url"
    )
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    kinds = (".py", ".md", ".toml", ".txt", ".yml", ".cfg", ".ipynb", "")
    texts = [ROOT / name for name in tracked if name and Path(name).suffix in kinds]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in texts
        if path.is_file()
        for match in suspect.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert not found, "\n".join(found)
