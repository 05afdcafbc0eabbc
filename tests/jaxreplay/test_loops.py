"""Conditions, optimisers and donated arrays of training loops, compared with plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreplay import donatable
from jaxreplay.loops import cond_if_any, if_finite, sum_of_squares
from tests.refusals import refused


def change(tree, extra):
    large, clock, small = tree
    return jnp.sort(large) + extra, clock, (small + 1).astype(jnp.int32)


def plain(due, tree, extra):
    large, _, small = change(tree, extra)
    return jnp.where(due, large, tree[0]), tree[1], jnp.where(due, small, tree[2])


def conditional(due, tree, extra):
    return cond_if_any(due, change, tree, extra)


def inputs(shape):
    large = jax.random.normal(jax.random.key(0), (*shape, 3))
    return large, jnp.int32(7), jnp.zeros(shape, jnp.int32)


# Sizes of nested vmaps, those over which `extra` varies, and decisions.
VMAPS = [
    ((), (), [0, 1]),
    ((1,), (0,), [0, 1]),
    ((4,), (0,), [0b0000, 0b0101, 0b1111]),
    ((4,), (), [0b0101]),
    ((2, 3), (1,), [0b100101]),
    ((2, 3), (0, 1), [0b100101]),
]


@pytest.mark.parametrize(("sizes", "varies", "masks"), VMAPS, ids=str)
def test_a_condition_equals_a_plain_one_under_any_vmap(sizes, varies, masks):
    def over(function):
        for axis in reversed(range(len(sizes))):  # `change` keeps the clock, which has no axis
            axes = (0, (0, None, 0), 0 if axis in varies else None)
            function = jax.vmap(function, axes, (0, None, 0))
        return jax.jit(function)

    tree, count = inputs(sizes), np.prod(sizes, dtype=int)
    extra = jnp.arange(3.0) + 10 * jax.random.normal(
        jax.random.key(1), (*(sizes[axis] for axis in varies), 3)
    )
    found, expected = over(conditional), over(plain)
    for mask in masks:
        due = ((mask >> jnp.arange(count)) % 2 == 1).reshape(sizes)
        jax.tree.map(
            np.testing.assert_array_equal, found(due, tree, extra), expected(due, tree, extra)
        )
    if len(sizes) == 2:  # no branch is computed that is not due, so no sort is batched
        jaxpr = str(jax.make_jaxpr(found)(due, tree, extra))
        assert "f32[3] = sort" in jaxpr
        assert "f32[6,3] = sort" not in jaxpr and "f32[2,3,3] = sort" not in jaxpr


def test_a_shared_decision_compiles_to_a_condition():
    mapped = jax.vmap(lambda due, x: cond_if_any(due, jnp.sort, x), (None, 0))
    x = jnp.array([[2.0, 1.0], [4.0, 3.0]])
    np.testing.assert_array_equal(mapped(jnp.array(False), x), x)
    np.testing.assert_array_equal(mapped(jnp.array(True), x), jnp.sort(x, axis=1))
    assert "cond[" in str(jax.make_jaxpr(mapped)(jnp.array(True), x))


def test_conditions_in_scans_under_nested_vmaps():
    def count(dues):
        step = lambda total, due: (cond_if_any(due, lambda t: t + 1, total), None)
        return jax.lax.scan(step, jnp.zeros((), jnp.int32), dues)[0]

    dues = jax.random.bernoulli(jax.random.key(0), 0.4, (2, 3, 9))
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(count)))(dues), dues.sum(-1))


def test_closures_over_traced_arrays_are_refused():
    with refused():
        jax.vmap(lambda due, x, y: cond_if_any(due, lambda x: x + y, x))(
            jnp.array([True, False]), jnp.ones(2), jnp.ones(2)
        )


def test_a_change_is_traced_once_outside_jit():
    traces = []

    def count(x, by):
        traces.append(by)
        return x + by

    results = [float(cond_if_any(jnp.array(due), count, jnp.float32(1), 2.0)) for due in (1, 0)]
    assert results == [3, 1] and len(traces) == 1


def test_donatable_copies_arrays_that_occur_twice():
    def tree():
        shared, twice = jnp.arange(3.0), jnp.zeros(2)
        return {"params": shared, "targets": shared, "other": [twice, twice], "last": jnp.ones(2)}

    negative = jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="same buffer twice"):
        negative(tree())
    before = tree()
    after = donatable(before)
    assert all(after[name] is before[name] for name in ("params", "last"))
    assert after["other"][0] is before["other"][0]
    np.testing.assert_array_equal(negative(after)["targets"], -np.arange(3.0))


ADAM = if_finite(optax.adam(0.1))
_update = jax.jit(ADAM.update)


def steps_of(gradients, dtype=np.float32):
    """Return the steps, and whether each gradient was finite."""
    params = {"a": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}
    state, steps, finite = ADAM.init(params), [], []
    for gradient in gradients:
        given = {"a": np.asarray([1.0, gradient], dtype), "b": np.ones((), dtype)}
        step, state = _update(given, state, params)
        steps.append([*np.asarray(step["a"]), np.asarray(step["b"])])
        finite.append(bool(state.finite))
    return np.stack(steps), finite


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [
        (np.nan, np.float32),
        (-np.inf, np.float32),
        (2e19, np.float32),  # its square overflows
        (np.inf, jnp.bfloat16),
        (300.0, np.float16),  # Adam's second moment overflows
    ],
)
def test_gradients_that_are_not_finite_change_neither_parameters_nor_state(bad, dtype):
    steps, finite = steps_of([2.0, bad, bad, 3.0], dtype)
    assert finite == [True, False, False, True]
    assert not steps[1:3].any()
    np.testing.assert_array_equal(steps[[0, 3]], steps_of([2.0, 3.0], dtype)[0])


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
def test_finiteness_does_not_depend_on_a_sum_of_squares(dtype):
    """The sum of 20,000 squares of 3 overflows float16."""
    gradient, sgd = jnp.full(20_000, 3, dtype), if_finite(optax.sgd(1.0))
    step, state = jax.jit(sgd.update)(gradient, sgd.init(gradient))
    assert bool(state.finite) and step.dtype == dtype
    np.testing.assert_array_equal(step, -gradient)


def test_empty_gradients_are_finite():
    step, state = ADAM.update({}, ADAM.init({}))
    assert step == {} and bool(state.finite)


@pytest.mark.parametrize("tree", [{}, {"a": jnp.float32([3.0, -4.0]), "b": (jnp.ones((2, 3)),)}])
def test_sums_of_squares_are_those_of_all_leaves(tree):
    expected = sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves(tree))
    assert float(jax.jit(sum_of_squares)(tree)) == expected


def test_sums_of_squares_are_one_reduction_on_accelerators():
    traced = jax.jit(sum_of_squares).trace([jnp.ones((4, 3)), jnp.ones(4), jnp.ones(())])
    reductions = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.reduce(")
        for platform in ("cpu", "cuda", "tpu")
    }
    assert reductions["cuda"] == reductions["tpu"] == 1 < reductions["cpu"]
