"""Functions that are traced once, and fast compilation of rare programs."""

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun


def jit_once(function: Callable[..., Any], **arguments: Any) -> Any:
    """Jit a function that is rarely called; on CPU with jaxlib 0.10, in half the compile time.

    Floating-point results may differ from `jax.jit` in their last bits. The function cannot be
    called inside another jitted function, because it has compiler options of its own.

    Args:
      function: function to compile.
      **arguments: arguments of `jax.jit`.
    """
    return jax.jit(function, compiler_options=_options(), **arguments)


def _options() -> dict[str, bool]:
    # XLA's newer fusion emitters make a training step 4 to 25 % faster, but double its compile
    # time. jaxlib 0.11 and later always use them.
    has_them = jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"
    return {"xla_cpu_use_fusion_emitters": False} if has_them else {}


class Traced:
    """A function of pytrees traced for given shapes; calls do not run its Python again.

    Attributes:
      outputs: pytree of the shapes and dtypes of the results.
    """

    def __init__(self, function: Callable[..., Any], *inputs: Any) -> None:
        """Trace `function(*inputs)`; `inputs` are pytrees of arrays, or of shapes and dtypes."""
        self._jaxpr, self.outputs = jax.make_jaxpr(function, return_shape=True)(*inputs)
        self._call = jaxpr_as_fun(self._jaxpr)

    def __call__(self, *inputs: Any) -> Any:
        """Apply the function to inputs of the traced shapes, with additional axes under vmap."""
        outputs = self._call(*jax.tree.leaves(inputs))
        return jax.tree.unflatten(jax.tree.structure(self.outputs), outputs)


def differing(function: Callable[..., Any], *inputs: Any) -> Any:
    """Return a pytree of 0 and None: the axes of the results if all inputs have a leading axis.

    A result has none if it depends on no input, by the rules of `jax.vmap`.

    Args:
      function: function of pytrees.
      *inputs: its inputs without the axis, or their shapes and dtypes.
    """
    found: list[Any] = []

    @custom_vmap
    def record(outputs: Any) -> Any:  # with the inputs: the rule needs an axis to be called
        return outputs

    @record.def_vmap
    def _(axis_size: int, in_batched: list[Any], outputs: Any) -> Any:
        del axis_size
        found.append(in_batched[0])
        return outputs, in_batched[0]

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), inputs)
    jax.eval_shape(jax.vmap(lambda *given: record((function(*given), given))), *shapes)
    return jax.tree.map(lambda differs: 0 if differs else None, found[0][0])
