"""Detection of large array copies in compiled loops, based on XLA's optimised HLO."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp


def assert_in_place(step: Callable[..., Any], state: Any, *args: Any, size: int = 0) -> None:
    """Assert that a compiled loop over `step` copies no large array of the loop state.

    XLA copies an array in every iteration if it can't prove that all reads of the array precede the
    next write (see `jaxreplay.buffer`). The loop is compiled for the default backend, but
    not run.

    Args:
      step: `(state, *args) -> state`, one iteration of the loop.
      state: pytree of arrays, such as a `ReplayState` with network parameters; shapes and dtypes
        suffice.
      *args: arguments of `step` that are the same in every iteration.
      size: minimum dimension of the arrays to check; 0 selects an eighth of the largest dimension
        of any array in the state.

    Raises:
      AssertionError: If the loop copies large arrays. The message names the arrays.

    Example:
      >>> def step(state, key):
      ...     state = replay.add(state, transition)
      ...     batch = replay.sample(state, key)
      ...     return replay.update(state, batch, td_error=batch.weights)
      >>> assert_in_place(step, state, jax.random.key(0))  # doctest: +SKIP
    """

    def loop(state: Any, *args: Any) -> Any:
        return jax.lax.fori_loop(0, 10, lambda _, carry: step(carry, *args), state)

    leaves = jax.tree_util.tree_leaves_with_path(state)
    largest = max((max(jnp.shape(leaf), default=1) for _, leaf in leaves), default=0)
    compiled = jax.jit(loop, donate_argnums=0).lower(state, *args).compile()
    copies = large_copies(compiled.as_text() or "", size or max(1, largest // 8))
    if copies:
        names: dict[str, list[str]] = {}
        for path, leaf in leaves:
            names.setdefault(_hlo_type(leaf), []).append(jax.tree_util.keystr(path))
        arrays = dict.fromkeys(re.findall(r"= \(?(\w+\[[\d,]+\])", line)[0] for line in copies)
        shown = [f"{x} ({' or '.join(names.get(x, ['a temporary']))})" for x in arrays]
        raise AssertionError(
            f"every iteration copies {', '.join(shown)}: call Replay.after_reading right after "
            "sample, and Replay.update for every batch; in a sampler of your own, let writes wait "
            "for reads of the same array (jaxreplay.buffer.after)"
        )


def _hlo_type(leaf: Any) -> str:
    """Return the dtype and shape of an array as in HLO, such as "f32[8,2]"."""
    dtype = jnp.result_type(leaf)
    kind = {"bool": "pred", "bfloat16": "bf16"}.get(dtype.name)
    kind = kind or f"{dtype.kind.replace('i', 's')}{8 * dtype.itemsize}"
    return f"{kind}[{','.join(map(str, jnp.shape(leaf)))}]"


def large_copies(text: str, size: int, children: int | None = None) -> list[str]:
    """Return the instructions in loops that copy an array with a dimension of at least `size`.

    Args:
      text: optimised HLO.
      size: smallest dimension to report, such as the capacity of a replay.
      children: if given, also report arrays `[..., children]` of at least `size` elements.
    """
    copies, called = [], _called(text)
    waiting, inside = re.findall(r"body=%([\w.-]+)", text), set()
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting += called.get(name, ())
    for name, line in _lines(text):
        match = re.search(r"= \(?\w+\[([\d,]+)\][^=]*?\bcopy(?:-start)?\(", line)
        if name not in inside or not match:
            continue
        shape = [int(n) for n in match[1].split(",")]
        if max(shape) >= size or (shape[-1] == children and math.prod(shape) >= size):
            copies.append(line.strip())
    return copies


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
        for one in re.findall(
            r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.-]+)", line
        ):
            called.setdefault(name, []).append(one)
        for several in re.findall(r"branch_computations=\{([^}]*)\}", line):
            called.setdefault(name, []).extend(re.findall(r"%([\w.-]+)", several))
    return called
