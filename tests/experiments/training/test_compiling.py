"""Dependencies of traced functions, compared with batching; compile options of rare programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.custom_batching import custom_vmap
from jax.errors import JaxRuntimeError

from experiments.training import compiling
from experiments.training.compiling import Traced
from tests.xla import HAS_OLD_FUSIONS

ONE = jnp.ones(())


def swap_back(a, b):
    """Scan whose second carry has the value of the first one two iterations before."""
    return jax.lax.scan(lambda c, _: ((c[2], c[0], c[1]), c[1]), (a, b, b), length=3)


def turns(a, b):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2, b), (a, b, b))


def choice(a, b):
    return jax.lax.cond(a > 0, lambda x: (x, 1.0), lambda x: (2 * x, 2.0), b)


def operand(a, b):
    return jax.lax.cond(b > 0, lambda x: (x, 1.0), lambda x: (2 * x, 2.0), a)


@custom_vmap
def first_only(a, b):
    return a + b, b


@first_only.def_vmap
def _(axis_size, in_batched, a, b):
    return (a + b, b), (in_batched[0] or in_batched[1], in_batched[1])


@jax.custom_jvp
def doubled(a, b):
    return 2 * a, b


doubled.defjvp(lambda x, dx: (doubled(*x), (2 * dx[0], dx[1])))

FUNCTIONS = {
    "operation": lambda a, b: (a + b, jnp.where(b > 0, b, 1), 3.0),
    "call": jax.jit(lambda a, b: (b, a, a * b)),
    "scan": swap_back,
    "while, whose turns depend": turns,
    "while": lambda a, b: turns(b, a),
    "cond, whose choice depends": choice,
    "cond": operand,
    "barrier": lambda a, b: jax.lax.optimization_barrier((a, b)),
    "rule of its own": lambda a, b: first_only(a, b),
    "rule of its own, in a loop": lambda a, b: jax.lax.fori_loop(
        0, 3, lambda _, c: first_only(c[1], c[0]), (a, b)
    ),
    "derivative of its own": doubled,
    "gradient": lambda a, b: (jax.grad(lambda x: jnp.tanh(x) * a)(b), b),
    "recomputed": jax.checkpoint(lambda a, b: (a * 2, b)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dependencies_equal_the_outputs_that_vmap_batches(name):
    function = FUNCTIONS[name]
    traced = Traced(function, ONE, ONE)
    for marked in ([True, False], [False, True], [True, True], [False, False]):
        told = traced.depends(marked, False)
        if not any(marked):
            assert not any(told)
            continue
        # vmap rejects `out_axes=None` for a batched output.
        axes = [0 if differs else None for differs in marked]
        tree = jax.tree.structure(traced.outputs)
        out_axes = jax.tree.unflatten(tree, [0 if differs else None for differs in told])
        inputs = [jnp.ones(2) if differs else ONE for differs in marked]
        jax.eval_shape(jax.vmap(traced, axes, out_axes), *inputs)
        for place, differs in enumerate(told):
            less = list(jax.tree.leaves(out_axes, is_leaf=lambda x: x is None))
            less[place] = None
            if differs:  # no output is marked without being batched
                with pytest.raises(ValueError, match="out_axes"):
                    jax.eval_shape(jax.vmap(traced, axes, jax.tree.unflatten(tree, less)), *inputs)


def test_values_of_an_enclosing_function_are_inputs_from_outside():
    def outer(value):
        traced = Traced(lambda x: (x + 1, x * value), ONE)
        assert traced.depends([False], True) == [False, True]
        assert traced.depends([False], False) == [False, False]
        return value

    jax.eval_shape(outer, ONE)


def test_traced_functions_return_equal_values_and_run_python_once():
    calls = []

    def function(x, tree):
        calls.append(1)
        return {"sum": x + tree["y"], "z": tree["z"] * 2}

    tree = {"y": jnp.arange(3.0), "z": jnp.ones(2, jnp.int32)}
    traced = Traced(function, ONE, tree)
    for result in (traced(ONE, tree), jax.jit(traced)(ONE, tree)):
        assert result["sum"].tolist() == [1, 2, 3] and result["z"].tolist() == [2, 2]
    assert len(calls) == 1


def test_rare_programs_use_the_option_if_xla_supports_it(monkeypatch):
    double = compiling.jit_once(lambda x: 2 * x, donate_argnums=0)
    given = jnp.arange(3.0)
    assert double(given).tolist() == [0, 2, 4] and given.is_deleted()
    on_cpu = jax.default_backend() == "cpu"
    assert bool(compiling._options()) == (HAS_OLD_FUSIONS and on_cpu)
    monkeypatch.setattr(compiling, "_options", lambda: {"xla_of_another_version": True})
    with pytest.raises(JaxRuntimeError, match="No such compile option"):
        compiling.jit_once(lambda x: 2 * x)(1.0)


def test_the_platform_is_that_of_the_default_device(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiling.default_platform() == "gpu"
    with jax.default_device(jax.devices("cpu")[0]):
        assert compiling.default_platform() == "cpu"
