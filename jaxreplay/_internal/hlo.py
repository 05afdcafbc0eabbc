"""Analysis of optimised HLO: copies of large arrays in loops, and operations of an iteration."""

import functools
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_FREE = {
    "parameter", "tuple", "get-tuple-element", "constant", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
_ENDS = ("-done", "-update")  # of asynchronous operations, which count at their start
_PACKAGE = Path(__file__).parents[1]
_HARNESS = Path(__file__).with_name("loop_cost.py")  # puts steps in loops
_OPERATION = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (.*?)(?<= )([a-z][\w-]*)\(")


class Operation(NamedTuple):
    """An operation of a compiled loop.

    Attributes:
      kind: name of the operation in HLO, such as "fusion".
      shapes: dtypes and shapes of its results, such as "f32[256]".
      times: number of times that an iteration of the loop carries out the operation.
      waits: whether the operation is a branch or a loop that depends on data.
      cycles: XLA's estimate of the cycles that the operation takes, on TPU.
      origin: source line outside of libraries, and the innermost library line that it calls.
    """

    kind: str
    shapes: tuple[str, ...]
    times: int
    waits: bool
    cycles: int
    origin: str


def iteration(text: str) -> list[Operation]:
    """Return the operations of one iteration of the largest loop; none if there is no loop.

    The largest loop is the loop with the most operations. An inner loop counts as all of its
    iterations if their number is constant, and as one iteration otherwise. A conditional counts as
    its largest branch.
    """
    program = _Program(text)
    bodies = re.findall(r"body=%([\w.-]+)", text)
    return max(map(program.operations, bodies), key=_total, default=[])


def _total(operations: list[Operation]) -> int:
    return sum(operation.times for operation in operations)


class _Program:
    """The computations of a compiled program, and the operations that they launch."""

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[str]] = {}
        for name, line in _lines(text):
            self._computations.setdefault(name, []).append(line)
        self._origins = _Origins(text)

    def operations(self, computation: str) -> list[Operation]:
        """Return the operations of a computation, and of all computations that it calls."""
        found: list[Operation] = []
        for line in self._computations.get(computation, ()):
            match = _OPERATION.match(line)
            if match is None or match[3] in _FREE or match[3].endswith(_ENDS):
                continue
            kind, inner, waits = match[3], [], False
            if kind == "conditional":
                inner, waits = max(map(self.operations, _branches(line)), key=_total), True
            elif kind == "while":
                trips = self._trips(line)
                waits = trips is None and not _is_generated(line)
                (body,) = re.findall(r"body=%([\w.-]+)", line)
                inner = [x._replace(times=x.times * (trips or 1)) for x in self.operations(body)]
            elif kind == "call":
                (called,) = re.findall(r"to_apply=%([\w.-]+)", line)
                found += self.operations(called)
                continue
            cycles = re.search(r'estimated_cycles":"(\d+)"', line)
            own = 0 if inner or cycles is None else int(cycles[1])
            shapes = tuple(re.findall(r"\w+\[[\d,]*\]", match[2]))
            found += [Operation(kind, shapes, 1, waits, own, self._origins.of(line)), *inner]
        return found

    def _trips(self, line: str) -> int | None:
        """Return the number of iterations of a loop, if it is constant."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', line):
            return int(known[1])
        # On TPU, only the condition has the number; JAX's loops of constant length count from 0.
        (condition,) = re.findall(r"condition=%([\w.-]+)", line)
        lines = "\n".join(self._computations.get(condition, ()))
        bound = re.search(r"ROOT .* compare\(%[\w.-]+, %([\w.-]+)\), direction=LT", lines)
        value = bound and re.search(rf"%{re.escape(bound[1])} = \S+ constant\((\d+)\)", lines)
        return int(value[1]) if value else None


class _Origins:
    """Source lines of the operations in a compiled program."""

    def __init__(self, text: str) -> None:
        def entries(title: str, pattern: str) -> dict[str, tuple[str, ...]]:
            table = re.search(rf"^{title}\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
            found = re.findall(pattern, table[1], re.MULTILINE) if table else []
            return {number: tuple(rest) for number, *rest in found}

        self._files = entries("FileNames", r'^(\d+) "(.*)"$')
        self._functions = entries("FunctionNames", r'^(\d+) "(.*)"$')
        self._places = entries(
            "FileLocations", r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)"
        )
        self._frames = entries(
            "StackFrames", r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?"
        )

    def of(self, line: str) -> str:
        """Return the origin of an operation, or its name in JAX if the source is unknown."""
        frame = re.search(r"stack_frame_id=(\d+)", line)
        path = self._path(frame[1]) if frame else ()
        if path:
            own = [place for place, library in path if not library]
            return " > ".join(dict.fromkeys([*own[:1], path[0][0]]))
        name = re.search(r'op_name="([^"]*)"', line)
        return re.sub(r"(?:jit\(\w+\)|while|body|closed_call)/", "", name[1]) if name else ""

    @functools.cache  # noqa: B019
    def _path(self, frame: str) -> tuple[tuple[str, bool], ...]:
        """Return the source lines of a call stack, innermost first, and which are library code."""
        found: list[tuple[str, bool]] = []
        while frame in self._frames:
            place, parent = self._frames[frame]
            file, function, number = self._places[place]
            path, name = Path(self._files[file][0]), self._functions[function][0]
            if path == _HARNESS:
                break
            library = path.is_relative_to(_PACKAGE) or "site-packages" in path.parts
            found.append((f"{path.name}:{number} {name.rpartition('>.')[2]}", library))
            frame = str(int(parent or 1) - 1)  # parents are counted from one, 0 is none
        return tuple(found)


def _branches(line: str) -> list[str]:
    several = re.search(r"branch_computations=\{([^}]*)\}", line)
    if several:
        return re.findall(r"%([\w.-]+)", several[1])
    return re.findall(r"(?:true|false)_computation=%([\w.-]+)", line)


def large_copies(
    text: str, size: int, children: int | None = None, counts: Collection[int] = ()
) -> list[str]:
    """Return the instructions in loops that copy an array with a dimension of at least `size`.

    Args:
      text: optimised HLO.
      size: smallest dimension to report, such as the capacity of a replay.
      children: if given, also report arrays `[..., children]` of at least `size` elements.
      counts: also report arrays with one of these numbers of elements, in any shape.
    """
    copies, called = [], _called(text)
    waiting, inside = re.findall(r"body=%([\w.-]+)", text), set()
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting += called.get(name, ())
    for name, line in _lines(text):
        if name not in inside:
            continue
        for found in _copied(line):
            shape = [int(n) for n in found.split(",")]
            count = math.prod(shape)
            if max(shape) >= size or count in counts or (shape[-1] == children and count >= size):
                copies.append(line.strip())
                break
    return copies


def _copied(line: str) -> list[str]:
    """Return the dimensions of the arrays that an instruction copies."""
    if " while(" in line:  # on TPU, changes of layout may be loops
        return re.findall(r"\w\[([\d,]+)\]", line.split(" while(")[0]) * _is_generated(line)
    if " copy-start(" in line:
        target, source = re.findall(r"\w\[[\d,]+\]\{[^}]*\}", line)[:2]
        if ("S(1)" in target) != ("S(1)" in source):
            return []  # between a TPU's memory and its cache, while other operations run
    return re.findall(r"= \(?\w+\[([\d,]+)\][^=]*?\bcopy(?:-start)?\(", line)


def _is_generated(line: str) -> bool:
    """Return whether the compiler added an instruction that the traced program does not contain."""
    return "op_name=" not in line


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line of HLO, after the name of the computation that contains it."""
    name = ""
    for line in text.splitlines():
        if start := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            name = start[1]
        yield name, line


def _called(text: str) -> dict[str, list[str]]:
    """Return the names of fusions, branches and nested loops that each computation calls."""
    called: dict[str, list[str]] = {}
    for name, line in _lines(text):
        for one in re.findall(r"(?:calls|to_apply|body|condition)=%([\w.-]+)", line):
            called.setdefault(name, []).append(one)
        called.setdefault(name, []).extend(_branches(line))
    return called
