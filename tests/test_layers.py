"""Architecture: packages import only from lower layers, and commands are in experiments/."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Layers from the bottom up; packages of one layer do not import each other.
LAYERS = (
    {"jaxreplay"},
    {"agents"},
    {"experiments.environments"},
    {"experiments.training"},
    {"experiments.files"},
    {"experiments.statistics"},
    {"experiments.figures"},
    {"experiments.runs"},
    {"experiments.cli"},
    {"experiments.benchmarks", "experiments.studies"},
    {"experiments.papers"},
    {"experiments"},  # commands
)
FILES = [
    path
    for package in ("jaxreplay", "agents", "experiments")
    for path in ROOT.glob(f"{package}/**/*.py")
]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def layer_of(module: str) -> int:
    """Return the layer of the package with the longest name that contains the module."""
    packages = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    fitting = [
        package for package in packages if module == package or module.startswith(package + ".")
    ]
    return packages[max(fitting, key=len)]


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules of this project that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= below & MODULES or {node.module}
    return found & MODULES


def test_packages_import_only_from_lower_layers():
    packages = [package for layer in LAYERS for package in layer]
    for path in FILES:
        own = module_of(path)
        package = max((name for name in packages if own.startswith(name)), key=len)
        for module in imports(path):
            lower = layer_of(module) < layer_of(own)
            assert lower or module.startswith(package), f"{path.name} imports {module}"


def test_imports_have_no_cycles():
    graph = {module_of(path): imports(path) - {module_of(path)} for path in FILES}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_top_level_modules_of_experiments_are_commands():
    for path in ROOT.glob("experiments/*.py"):
        assert path.name == "__init__.py" or 'if __name__ == "__main__":' in path.read_text()


EXTRAS = "gymnax brax gymnasium mujoco ale_py minari xminigrid sklearn optuna ray rejax flashbax"


def test_commands_start_without_the_packages_of_other_extras():
    """`make run` installs only those of the extra `codebase`."""
    commands = [module_of(path) for path in ROOT.glob("experiments/*.py")]
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({EXTRAS.split()})
for name in {sorted(commands)} + ["experiments.papers.catalogue"]:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_only_the_library_imports_its_internals():
    for path in FILES:
        inside = module_of(path).split(".")[0] == "jaxreplay"
        assert inside or not any(name.startswith("jaxreplay._internal") for name in imports(path))
