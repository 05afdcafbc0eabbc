"""Functions traced once, their data dependencies, and fast compilation of rarely called ones.

JAX's batching also finds which outputs depend on which inputs, but it traces the body of every loop
several times, which multiplies for nested loops. This module reads a jaxpr that is traced once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
from jax.custom_batching import custom_vmap
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    jaxpr_as_fun,
    jaxprs_in_params,
)

Flags: TypeAlias = list[bool]


def jit_once(function: Callable[..., Any], **arguments: Any) -> Any:
    """Jit a function that is rarely called, in half the compile time on CPU with jaxlib 0.10.

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
    has_them = jax.__version_info__ < (0, 11) and default_platform() == "cpu"
    return {"xla_cpu_use_fusion_emitters": False} if has_them else {}


def default_platform() -> str:
    """Return the platform of JAX's default device, which `jax.default_device` can change."""
    device = jax.config.jax_default_device
    return jax.default_backend() if device is None else getattr(device, "platform", device)


class Waiting(ValueError):
    """Raised if devices may make different numbers of collective calls, and so wait forever."""


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

    def depends(self, inputs: Flags, others: bool, on_device: bool = False) -> Flags:
        """Return which leaves of the output depend on the flagged leaves of the inputs.

        Args:
          inputs: flags of the leaves of the inputs, in order; the last leaves may be left out.
          others: the flag of the leaves left out, and of values of an enclosing function that is
            being traced, such as the settings of a sweep.
          on_device: see the function `depends`.
        """
        jaxpr = self._jaxpr.jaxpr
        fixed = [isinstance(x, jax.core.Tracer) and others for x in self._jaxpr.consts]
        inputs = inputs + [others] * (len(jaxpr.invars) - len(inputs))
        return depends(jaxpr, inputs, on_device, fixed)


def differing(init: Traced, step: Traced, from_outside: bool) -> Flags:
    """Return which leaves of a loop's state differ between seeds; all seeds share the others.

    A leaf is shared if neither `init` nor `step` makes it depend on the inputs of `init`.

    Args:
      init: traced function of inputs, such as a key, that returns the state before the loop.
      step: traced function of `(state, *others)`; its first result is the next state.
      from_outside: whether `others`, and values of an enclosing function that is being traced,
        differ between seeds.
    """
    flags = init.depends([], True)
    return until_stable(lambda flags: step.depends(flags, from_outside)[: len(flags)], flags)


def depends(
    jaxpr: Jaxpr, inputs: Sequence[bool], on_device: bool = False, constants: Sequence[bool] = ()
) -> Flags:
    """Return which outputs depend on the flagged inputs, with the rules of JAX's batching.

    Every output of an operation depends on each of its inputs. Loops, branches and calls are
    searched recursively; their outputs also depend on the number of iterations and on the choice.

    Args:
      jaxpr: the traced function.
      inputs: one flag per input.
      on_device: whether a flag means that values differ between devices of a `jax.shard_map`.
        Results of reductions over devices do not differ; the index of a device does.
      constants: one flag per constant.

    Raises:
      Waiting: with `on_device`, a branch or loop contains messages (collective operations), and the
        choice of the branch or the number of iterations may differ between devices.
    """
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known.update(zip(jaxpr.constvars, constants, strict=False))

    def flag(variable: Any) -> bool:
        return not isinstance(variable, Literal) and known.get(variable, False)

    for equation in jaxpr.eqns:
        given = [flag(x) for x in equation.invars]
        rule = _RULES.get(equation.primitive.name)
        outputs = [any(given)] * len(equation.outvars)
        if on_device and equation.primitive.name in _REDUCTIONS:
            outputs = [False] * len(equation.outvars)
        elif on_device and equation.primitive.name == "axis_index":
            outputs = [True]
        elif rule is not None and (any(given) or on_device):
            outputs = rule(equation, given, on_device)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [flag(x) for x in jaxpr.outvars]


def until_stable(step: Callable[[Flags], Flags], carry: Flags) -> Flags:
    """Return the flags of a loop's carry after any number of iterations, given the first flags."""
    while (after := [x or y for x, y in zip(carry, step(carry), strict=True)]) != carry:
        carry = after
    return carry


def _each(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    """Let every output depend only on the input at the same position."""
    del equation, on_device
    return given


def _call(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    (inner,) = (x for x in equation.params.values() if isinstance(x, ClosedJaxpr | Jaxpr))
    return depends(_open(inner), given, on_device)


def _scan(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    fixed, carry, rows = _parts_of_scan(equation, given)
    carried = len(carry)
    body = _open(equation.params["jaxpr"])
    carry = until_stable(
        lambda carry: depends(body, fixed + carry + rows, on_device)[:carried], carry
    )
    return carry + depends(body, fixed + carry + rows, on_device)[carried:]


def _parts_of_scan(equation: JaxprEqn, given: Flags) -> tuple[Flags, Flags, Flags]:
    """Split the inputs of a scan into constants, the carry, and inputs with a row per iteration."""
    if "ft_in" in equation.params:  # jax 0.11
        fixed, carry, rows = map(list, equation.params["ft_in"].update(given).unpack())
        return fixed, carry, rows
    consts, carried = equation.params["num_consts"], equation.params["num_carry"]
    return given[:consts], given[consts : consts + carried], given[consts + carried :]


def _while(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    count = equation.params["cond_nconsts"]
    rest = count + equation.params["body_nconsts"]
    of_test, of_body, carry = given[:count], given[count:rest], given[rest:]
    body = _open(equation.params["body_jaxpr"])
    carry = until_stable(lambda carry: depends(body, of_body + carry, on_device), carry)
    test = _open(equation.params["cond_jaxpr"])
    (iterations,) = depends(test, of_test + carry, on_device)
    _check_messages(iterations and on_device, "the number of iterations of a loop", test, body)
    return [iterations or x for x in carry]


def _cond(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    choice, *operands = given
    parts = [_open(branch) for branch in equation.params["branches"]]
    _check_messages(choice and on_device, "the choice of a branch", *parts)
    branches = [depends(branch, operands, on_device) for branch in parts]
    return [choice or any(outputs) for outputs in zip(*branches, strict=True)]


def _custom(equation: JaxprEqn, given: Flags, on_device: bool) -> Flags:
    """Apply a function's custom batching rule to shapes, and record the outputs it batches."""
    del on_device
    if not any(given):
        return [False] * len(equation.outvars)
    found: list[list[bool]] = []

    @custom_vmap
    def record(outputs: list[Any]) -> list[Any]:
        return outputs

    @record.def_vmap
    def _(axis_size: int, in_batched: list[list[bool]], outputs: list[Any]) -> Any:
        del axis_size
        found.extend(in_batched)
        return outputs, in_batched[0]

    def call(*inputs: Any) -> list[Any]:
        return record(list(equation.primitive.bind(*inputs, **equation.params)))

    shapes = [
        jax.ShapeDtypeStruct((2, *x.aval.shape) if differs else x.aval.shape, x.aval.dtype)
        for x, differs in zip(equation.invars, given, strict=True)
    ]
    jax.eval_shape(jax.vmap(call, [0 if differs else None for differs in given]), *shapes)
    return found[0] if found else [False] * len(equation.outvars)


def _check_messages(differs: bool, what: str, *parts: Jaxpr) -> None:
    """Raise Waiting if devices may differ in whether they execute parts with collectives."""
    names = {name for part in parts for name in _primitives(part)} if differs else set()
    if found := sorted(names & _MESSAGES):
        raise Waiting(f"{what} with a message ({', '.join(found)}) may differ between devices")


def _primitives(jaxpr: Jaxpr) -> Iterator[str]:
    """Yield the names of the operations of a traced function, and of functions inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _primitives(inner)


def _open(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


_REDUCTIONS = frozenset({"psum", "pmax", "pmin", "all_gather"})
_MESSAGES = _REDUCTIONS | {"ppermute", "all_to_all", "reduce_scatter"}
_RULES: Mapping[str, Callable[[JaxprEqn, Flags, bool], Flags]] = MappingProxyType(
    {
        "scan": _scan,
        "while": _while,
        "cond": _cond,
        **dict.fromkeys(("jit", "closed_call", "remat2", "shard_map"), _call),
        **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), _call),
        "optimization_barrier": _each,
        "custom_vmap_call": _custom,
    }
)
