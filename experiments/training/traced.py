"""Functions that are traced once, and which of their outputs depend on which inputs.

JAX knows what depends on what when it batches, but to learn it that way traces the body of a loop
several times over, and that of a loop within it as often again: here the traced program is read.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

Flags: TypeAlias = list[bool]


class Traced:
    """A function of pytrees, traced for given shapes; calls of it don't run its Python again.

    Attributes:
      outputs: a pytree of the shapes and dtypes of what it returns.
    """

    def __init__(self, function: Callable[..., Any], *inputs: Any) -> None:
        """Trace `function(*inputs)`; `inputs` are pytrees of arrays, or of shapes and dtypes."""
        self._jaxpr, self.outputs = jax.make_jaxpr(function, return_shape=True)(*inputs)
        self._call = jaxpr_as_fun(self._jaxpr)

    def __call__(self, *inputs: Any) -> Any:
        """Apply it to inputs of the very shapes it was traced for, or of more axes under vmap."""
        outputs = self._call(*jax.tree.leaves(inputs))
        return jax.tree.unflatten(jax.tree.structure(self.outputs), outputs)

    def depends(self, inputs: Flags, others: bool) -> Flags:
        """Tell which leaves of the output depend on the input leaves marked.

        Args:
          inputs: whether each leaf of the first inputs is marked.
          others: whether those of the rest are.
        """
        jaxpr = self._jaxpr.jaxpr
        return depends(jaxpr, inputs + [others] * (len(jaxpr.invars) - len(inputs)))


def depends(jaxpr: Jaxpr, inputs: Sequence[bool]) -> Flags:
    """Tell which outputs depend on the inputs marked, as JAX's batching would have it.

    Every output of an operation depends on every input of it. Loops, branches and calls are looked
    into; what leaves a loop whose number of turns depends, or a branch whose choice does, depends
    as well.

    Args:
      jaxpr: of the function.
      inputs: whether each of its inputs is marked.
    """
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def marked(variable: Any) -> bool:
        return not isinstance(variable, Literal) and known.get(variable, False)

    for equation in jaxpr.eqns:
        given = [marked(x) for x in equation.invars]
        rule = _RULES.get(equation.primitive.name)
        outputs = [any(given)] * len(equation.outvars)
        if rule is not None and any(given):
            outputs = rule(equation, given)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [marked(x) for x in jaxpr.outvars]


def until_stable(step: Callable[[Flags], Flags], carry: Flags) -> Flags:
    """Return which parts of a loop's carry ever depend, from those that do at first."""
    while (after := [x or y for x, y in zip(carry, step(carry), strict=True)]) != carry:
        carry = after
    return carry


def _each(equation: JaxprEqn, given: Flags) -> Flags:
    """Let every output depend on the input at its place alone."""
    del equation
    return given


def _call(equation: JaxprEqn, given: Flags) -> Flags:
    (inner,) = (x for x in equation.params.values() if isinstance(x, ClosedJaxpr | Jaxpr))
    return depends(_open(inner), given)


def _scan(equation: JaxprEqn, given: Flags) -> Flags:
    fixed, carry, rows = _parts_of_scan(equation, given)
    carried = len(carry)
    body = _open(equation.params["jaxpr"])
    carry = until_stable(lambda carry: depends(body, fixed + carry + rows)[:carried], carry)
    return carry + depends(body, fixed + carry + rows)[carried:]


def _parts_of_scan(equation: JaxprEqn, given: Flags) -> tuple[Flags, Flags, Flags]:
    """Cut the inputs of a scan into those of all turns, its carry, and what has a row a turn."""
    if "ft_in" in equation.params:  # jax 0.11
        fixed, carry, rows = map(list, equation.params["ft_in"].update(given).unpack())
        return fixed, carry, rows
    consts, carried = equation.params["num_consts"], equation.params["num_carry"]
    return given[:consts], given[consts : consts + carried], given[consts + carried :]


def _while(equation: JaxprEqn, given: Flags) -> Flags:
    count = equation.params["cond_nconsts"]
    rest = count + equation.params["body_nconsts"]
    of_test, of_body, carry = given[:count], given[count:rest], given[rest:]
    body = _open(equation.params["body_jaxpr"])
    carry = until_stable(lambda carry: depends(body, of_body + carry), carry)
    (turns,) = depends(_open(equation.params["cond_jaxpr"]), of_test + carry)
    return [turns or x for x in carry]


def _cond(equation: JaxprEqn, given: Flags) -> Flags:
    choice, *operands = given
    branches = [depends(_open(branch), operands) for branch in equation.params["branches"]]
    return [choice or any(outputs) for outputs in zip(*branches, strict=True)]


def _ask(equation: JaxprEqn, given: Flags) -> Flags:
    """Batch a function with a batching rule of its own: only the rule knows. Nothing is run."""
    answer: list[list[bool]] = []

    @custom_vmap
    def listen(outputs: list[Any]) -> list[Any]:
        return outputs

    @listen.def_vmap
    def _(axis_size: int, in_batched: list[list[bool]], outputs: list[Any]) -> Any:
        del axis_size
        answer.extend(in_batched)
        return outputs, in_batched[0]

    def call(*inputs: Any) -> list[Any]:
        return listen(list(equation.primitive.bind(*inputs, **equation.params)))

    shapes = [
        jax.ShapeDtypeStruct((2, *x.aval.shape) if differs else x.aval.shape, x.aval.dtype)
        for x, differs in zip(equation.invars, given, strict=True)
    ]
    jax.eval_shape(jax.vmap(call, [0 if differs else None for differs in given]), *shapes)
    return answer[0] if answer else [False] * len(equation.outvars)


def _open(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


_RULES: Mapping[str, Callable[[JaxprEqn, Flags], Flags]] = MappingProxyType(
    {
        "scan": _scan,
        "while": _while,
        "cond": _cond,
        "jit": _call,
        "closed_call": _call,
        "remat2": _call,
        "custom_jvp_call": _call,
        "custom_vjp_call": _call,
        "optimization_barrier": _each,
        "custom_vmap_call": _ask,
    }
)
