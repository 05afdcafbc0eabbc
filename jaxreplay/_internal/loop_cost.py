"""Compile a loop over a step, for this machine or for a GPU or TPU, and return its cost."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay._internal import hlo, topologies
from jaxreplay.sum_tree import SumTree

_ITERATIONS = 100
_NO_LOOP = (
    "step must return a state with the shapes and dtypes of its first argument, or contain a loop "
    "of its own"
)


class Cost(NamedTuple):
    """Cost of one iteration of a compiled loop; `print` shows the cost and the operations.

    Attributes:
      platform: platform that the loop is compiled for.
      launches: number of operations; on a GPU, of kernels that are launched one after the other.
      conditionals: number of branches and of loops of unknown length, which depend on data; on a
        GPU, the host reads the data before it continues.
      copies: number of copies of large arrays. Moves between a TPU's memory and its cache, which
        other operations overlap, do not count.
      cycles: XLA's estimate of cycles on a TPU, None on other platforms.
      bytes: device memory that the compiled program needs, including the state.
      operations: operations of the iteration and their origin in the source.
    """

    platform: str
    launches: int
    conditionals: int
    copies: int
    cycles: int | None
    bytes: int
    operations: tuple[hlo.Operation, ...]

    def __str__(self) -> str:
        """Return a table of the number of operations (and cycles, on TPU) of each source line."""
        lines: dict[str, list[hlo.Operation]] = {}
        for operation in self.operations:
            lines.setdefault(operation.origin, []).append(operation)
        rows = [
            (
                sum(each.times for each in found),
                sum(each.times * each.cycles for each in found),
                ", ".join(dict.fromkeys(each.kind for each in found)),
                origin or "(the compiler)",
            )
            for origin, found in lines.items()
        ]
        rows.sort(key=lambda row: row[1::-1] if self.cycles else row[:2], reverse=True)
        estimate = "" if self.cycles is None else f", {self.cycles:,} cycles"
        head = (
            f"{self.platform}, one iteration: {self.launches:,} launches{estimate}, "
            f"{self.conditionals} conditionals, {self.copies} large copies; "
            f"{self.bytes / 1e6:,.1f} MB of memory"
        )
        table = [
            f"{count:>8,}  " + (f"{cycles:>9,}  " if self.cycles else "") + f"{origin}  [{kinds}]"
            for count, cycles, kinds, origin in rows
        ]
        titles = f"{'launches':>8}  " + (f"{'cycles':>9}  " if self.cycles else "") + "origin"
        return "\n".join([head, titles, *table])


def compiled_cost(
    step: Callable[..., Any], state: Any, *args: Any, platform: str | None = None, size: int = 0
) -> Cost:
    """Compile a loop, without running it, and return the cost of one iteration.

    Args:
      step: one iteration of the loop, `(state, *args) -> state` or `-> (state, output)`. A function
        that returns anything else must contain a loop, of which one iteration is measured. If the
        function contains several loops, the loop with the most operations is measured.
      state: pytree of arrays, such as a `ReplayState` with network parameters; shapes and dtypes
        suffice, as from `jax.eval_shape`.
      *args: further arguments of one iteration, such as a key, different in each iteration.
      platform: "gpu" (an H100) or "tpu" (a v5e), whether the machine has one or not, or None for
        the default backend.
      size: minimum dimension of large arrays; 0 selects an eighth of the largest dimension of any
        array in the state or the result of `step`.

    Raises:
      ImportError: If the platform's compiler is not installed.
      ValueError: If the platform is unknown, or `step` returns no state and contains no loop.

    Example:
      >>> def step(state, key):
      ...     state = replay.add(state, transition)
      ...     batch = replay.sample(state, key)
      ...     return replay.update(state, batch, td_error=batch.weights)
      >>> print(compiled_cost(step, state, jax.random.key(0), platform="gpu"))  # doctest: +SKIP
    """
    compiled, arrays = _compile(step, state, args, platform)
    text, large = compiled.as_text() or "", _Large(arrays, size)
    operations = hlo.iteration(text)
    if not operations:
        raise ValueError(_NO_LOOP)
    cycles = sum(each.times * each.cycles for each in operations)
    memory = compiled.memory_analysis()
    assert memory is not None
    return Cost(
        platform=platform or jax.default_backend(),
        launches=sum(each.times for each in operations),
        conditionals=sum(each.times for each in operations if each.waits),
        copies=len(large.copies(text)),
        cycles=cycles or None,
        bytes=memory.argument_size_in_bytes + memory.output_size_in_bytes
        - memory.alias_size_in_bytes + memory.temp_size_in_bytes,
        operations=tuple(operations),
    )  # fmt: skip


def assert_in_place(
    step: Callable[..., Any], state: Any, *args: Any, platform: str | None = None, size: int = 0
) -> None:
    """Assert that a compiled loop over `step` copies no large array of the loop state.

    XLA copies an array in every iteration if it can't prove that all reads of the array precede the
    next write (see `jaxreplay.buffer`). The loop is compiled, but not run. The arguments are those
    of `compiled_cost`.

    Raises:
      AssertionError: If the loop copies large arrays. The message names the arrays.
      ImportError: If the platform's compiler is not installed.
      ValueError: If the platform is unknown.

    Example:
      >>> def step(state, key):
      ...     state = replay.add(state, transition)
      ...     batch = replay.sample(state, key)
      ...     return replay.update(state, batch, td_error=batch.weights)
      >>> assert_in_place(step, state, jax.random.key(0))  # doctest: +SKIP
    """
    compiled, arrays = _compile(step, state, args, platform)
    large = _Large(arrays, size)
    if copies := large.copies(compiled.as_text() or ""):
        found = dict.fromkeys(re.findall(r"= \(?(\w+\[[\d,]+\])", line)[0] for line in copies)
        shown = [f"{x} ({' or '.join(large.names.get(x, ['a temporary']))})" for x in found]
        raise AssertionError(
            f"every iteration copies {', '.join(shown)}: call Replay.after_reading right after "
            "sample, and Replay.update for every batch; in a sampler of your own, let writes wait "
            "for reads of the same array (jaxreplay.buffer.after)"
        )


class _Large:
    """The large arrays of a state: their names, and copies of them."""

    def __init__(self, state: Any, size: int) -> None:
        leaves = jax.tree_util.tree_leaves_with_path(state)
        largest = max((max(leaf.shape, default=1) for _, leaf in leaves), default=0)
        self._size = size or max(1, largest // 8)
        shapes = [leaf.shape for _, leaf in leaves if max(leaf.shape, default=0) >= self._size]
        trees = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SumTree))
        trees = [x for x in trees if isinstance(x, SumTree) and x.capacity >= self._size]
        shapes += [tree.nodes.shape for tree in trees]
        self._counts = {math.prod(shape) for shape in shapes}  # XLA reshapes some
        self.names: dict[str, list[str]] = {}  # HLO type -> names of arrays
        for path, leaf in leaves:
            self.names.setdefault(_hlo_type(leaf), []).append(jax.tree_util.keystr(path))

    def copies(self, text: str) -> list[str]:
        return hlo.large_copies(text, self._size, counts=self._counts)


def _compile(
    step: Callable[..., Any], state: Any, args: tuple[Any, ...], platform: str | None
) -> tuple[jax.stages.Compiled, Any]:
    """Compile a loop over a step, or a step that contains a loop; also return the array shapes."""
    topologies.check(platform)
    start, *inputs = jax.eval_shape(lambda *given: given, state, *args)
    jaxpr, result = jax.make_jaxpr(step, return_shape=True)(start, *inputs)
    returns_state = _types(result) == _types(start)
    if not returns_state and not (
        isinstance(result, tuple) and len(result) == 2 and _types(result[0]) == _types(start)
    ):
        if not re.search(r"\b(scan|while)\[", str(jaxpr)):
            raise ValueError(_NO_LOOP)
        compiled = topologies.compiled(step, start, *inputs, platform=platform, donate=())
        return compiled, (start, result)

    def loop(start: Any, inputs: Any) -> Any:
        def one(carry: Any, inputs: Any) -> Any:
            result = step(carry, *inputs)
            return (result, None) if returns_state else result

        return jax.lax.scan(one, start, inputs, _ITERATIONS)

    scanned = jax.tree.map(lambda x: jax.ShapeDtypeStruct((_ITERATIONS, *x.shape), x.dtype), inputs)
    return topologies.compiled(loop, start, scanned, platform=platform, donate=0), start


def _types(tree: Any) -> tuple[Any, ...]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(x.shape, x.dtype) for x in leaves]


def _hlo_type(leaf: Any) -> str:
    """Return the dtype and shape of an array as in HLO, such as "f32[8,2]"."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    dtype = leaf.dtype
    kind = {"bool": "pred", "bfloat16": "bf16"}.get(dtype.name)
    kind = kind or f"{dtype.kind.replace('i', 's')}{8 * dtype.itemsize}"
    return f"{kind}[{','.join(map(str, leaf.shape))}]"
