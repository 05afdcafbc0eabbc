"""`cond_if_any` runs a branch only if it is due and returns the values of a plain condition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.loops import cond_if_any
from tests.refusals import refused


def change(tree, extra):
    large, clock, small = tree
    return large + extra, clock, (small + 1).astype(jnp.int32)


def plain(due, tree, extra):
    large, _, small = change(tree, extra)
    return jnp.where(due, large, tree[0]), tree[1], jnp.where(due, small, tree[2])


def start(size=()):
    return jnp.zeros((*size, 3)), jnp.int32(7), jnp.zeros(size, jnp.int32)


@pytest.mark.parametrize("due", [False, True])
def test_a_single_program_equals_a_plain_condition(due):
    found = jax.jit(lambda due: cond_if_any(due, change, start(), jnp.arange(3.0)))(jnp.array(due))
    jax.tree.map(np.testing.assert_array_equal, found, plain(due, start(), jnp.arange(3.0)))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("extra_axis", [0, None], ids=["own", "shared"])
@pytest.mark.parametrize("mask", [0b0000, 0b0101, 0b1111])
def test_vmapped_programs_equal_a_plain_condition(size, extra_axis, mask):
    due = (mask >> jnp.arange(size)) % 2 == 1
    extra = jnp.arange(3.0) + (10 * jnp.arange(size)[:, None] if extra_axis == 0 else 0)
    axes = (0, (0, None, 0), extra_axis)
    outs = (0, None, 0)  # `change` returns the clock unchanged, so it stays unbatched
    found = jax.jit(jax.vmap(lambda *a: cond_if_any(a[0], change, *a[1:]), axes, outs))
    args = (due, start((size,)), extra)
    expected = jax.vmap(plain, axes, outs)(*args)
    jax.tree.map(np.testing.assert_array_equal, found(*args), expected)


def test_an_unbatched_predicate_compiles_to_cond():
    def program(due, x):
        return cond_if_any(due, lambda x: jnp.sort(x), x)

    mapped = jax.vmap(program, (None, 0))
    x = jnp.array([[2.0, 1.0], [4.0, 3.0]])
    np.testing.assert_array_equal(mapped(jnp.array(False), x), x)
    np.testing.assert_array_equal(mapped(jnp.array(True), x), jnp.sort(x, axis=1))
    assert "cond[" in str(jax.make_jaxpr(mapped)(jnp.array(True), x))


def test_closures_over_traced_arrays_are_refused():
    def program(due, x, y):
        return cond_if_any(due, lambda x: x + y, x)

    with refused():
        jax.vmap(program)(jnp.array([True, False]), jnp.ones(2), jnp.ones(2))


def test_change_is_traced_once_outside_jit():
    traces = []

    def count(x, by):
        traces.append(by)
        return x + by

    results = [
        float(cond_if_any(jnp.array(due), count, jnp.float32(1), 2.0)) for due in (1 > 0, 0 > 1)
    ]
    assert results == [3, 1] and len(traces) == 1


def test_nested_vmap_within_scan_equals_a_plain_condition():
    def program(dues):
        def step(total, due):
            return cond_if_any(due, lambda t: t + 1, total), total

        return jax.lax.scan(step, jnp.zeros((), jnp.int32), dues)[0]

    dues = jax.random.bernoulli(jax.random.key(0), 0.4, (2, 3, 9))
    found = jax.jit(jax.vmap(jax.vmap(program)))(dues)
    np.testing.assert_array_equal(found, dues.sum(-1))


@pytest.mark.parametrize("shared", ["outer", "inner", "neither"])
def test_nested_vmap_equals_a_plain_condition(shared):
    """No branch is computed that is not due, whichever axes the inputs have."""
    axes = {"outer": (None, 0), "inner": (0, None), "neither": (0, 0)}[shared]
    shape = tuple(size for size, axis in zip((2, 3), axes, strict=True) if axis == 0)
    extra = jnp.arange(6.0)[: int(np.prod(shape))].reshape(shape)

    def many(function):
        inner = jax.vmap(function, (0, 0, axes[1]))
        return jax.vmap(inner, (0, 0, axes[0]))

    def own(due, x, extra):
        return cond_if_any(due, lambda x, extra: jnp.sort(x) + extra, x, extra)

    def plain(due, x, extra):
        return jnp.where(due, jnp.sort(x) + extra, x)

    due = jnp.array([[True, False, True], [False, False, True]])
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    found = jax.jit(many(own))(due, x, extra)
    np.testing.assert_array_equal(found, many(plain)(due, x, extra))
    jaxpr = str(jax.make_jaxpr(many(own))(due, x, extra))
    assert "f32[4] = sort" in jaxpr  # no batched sort
    assert "f32[6,4] = sort" not in jaxpr and "f32[2,3,4] = sort" not in jaxpr
