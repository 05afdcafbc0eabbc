"""The architecture: rooms import downwards only, and the top of experiments/ holds commands."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Floors from the ground up; rooms of one floor do not know one another.
FLOORS = (
    {"jaxreplay"},
    {"agents"},
    {"experiments.installation"},
    {"experiments.environments"},
    {"experiments.training"},
    {"experiments.storage"},
    {"experiments.statistics"},
    {"experiments.figures"},
    {"experiments.runs"},
    {"experiments.cli"},
    {"experiments.benchmarks", "experiments.studies"},
    {"experiments.papers", "experiments.report"},
    {"experiments"},  # the commands at the top
)
FILES = [
    path for room in ("jaxreplay", "agents", "experiments") for path in ROOT.glob(f"{room}/**/*.py")
]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def floor_of(module: str) -> int:
    """Return the floor of the longest room name that the module lies below."""
    rooms = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    fitting = [room for room in rooms if module == room or module.startswith(room + ".")]
    return rooms[max(fitting, key=len)]


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


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_downwards(path):
    own = floor_of(module_of(path))
    room = max((r for floor in FLOORS for r in floor if module_of(path).startswith(r)), key=len)
    for module in imports(path):
        same_room = module.startswith(room)
        assert floor_of(module) < own or same_room, f"{path.name} imports {module}"


def test_imports_have_no_circles():
    graph = {module_of(path): imports(path) - {module_of(path)} for path in FILES}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_top_of_experiments_holds_commands():
    for path in ROOT.glob("experiments/*.py"):
        assert path.name == "__init__.py" or 'if __name__ == "__main__":' in path.read_text()


def test_tests_mirror_the_rooms():
    rooms = {
        path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")
    }
    known = {path.parent.relative_to(ROOT) for path in FILES}
    for room in rooms - {Path("."), Path("contract")}:
        renamed = Path(*("_internal" if part == "internal" else part for part in room.parts))
        assert renamed in known, room


def test_internals_are_used_by_the_library_alone():
    for path in FILES:
        module = module_of(path)
        inside = module.split(".")[0] == "jaxreplay"
        if not inside:
            assert not any(name.startswith("jaxreplay._internal") for name in imports(path)), module
