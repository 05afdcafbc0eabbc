"""Linear layers have the gradients of a matrix product and compute no unused products."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.layers import Dense
from jaxreplay.loops import product


def arrays(rows, inputs, outputs):
    rng = np.random.default_rng(0)
    shapes = (*rows, inputs), (inputs, outputs), (*rows, outputs)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


# Few or many inputs and outputs, or a single one, with zero, one or two leading axes.
@pytest.mark.parametrize("rows", [(), (6,), (2, 3)])
@pytest.mark.parametrize("inputs, outputs", [(3, 40), (40, 2), (40, 1), (2, 3), (40, 20), (40, 36)])
def test_values_and_gradients_agree_with_a_matrix_product(rows, inputs, outputs):
    x, kernel, weight = arrays(rows, inputs, outputs)
    np.testing.assert_allclose(product(x, kernel), x @ kernel, rtol=1e-5, atol=1e-5)
    ours, plain = (
        jax.jit(jax.grad(lambda x, k, f=f: (weight * f(x, k) ** 2).sum(), argnums=(0, 1)))
        for f in (product, jnp.matmul)
    )
    for got, expected in zip(ours(x, kernel), plain(x, kernel), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_short_dimensions_avoid_matrix_products():
    def shapes(inputs, outputs):
        x, kernel, _ = arrays((6,), inputs, outputs)
        grad = jax.grad(lambda *args: product(*args).sum(), (0, 1))
        products = re.findall(r"(\S+) = dot_general", str(jax.make_jaxpr(grad)(x, kernel)))
        return sorted(re.sub(r".*:", "", product) for product in products)

    assert shapes(40, 36) == ["f32[40,36]", "f32[6,36]", "f32[6,40]"]
    assert shapes(40, 2) == ["f32[40]", "f32[40]", "f32[6,2]"]  # one vector for each output
    assert shapes(3, 36) == ["f32[3,36]", "f32[6,3]"]


def test_minimum_of_values_has_a_gradient_for_all_sizes():
    """XLA must not recompute the values with other rounding: the gradient tests equality."""
    for inputs, outputs in ((8, 1), (2, 1), (3, 3)):  # no sum that XLA could compute twice
        x, kernel, _ = arrays((6,), inputs, outputs)
        assert "dot_general" in str(jax.make_jaxpr(product)(x, kernel))
    for hidden in range(1, 10):
        x, kernel, _ = arrays((6,), 3, hidden)
        heads = jnp.asarray(np.random.default_rng(1).normal(size=(2, hidden, 1)), jnp.float32)

        def least(x, kernel=kernel, heads=heads):
            values = [product(jax.nn.relu(product(x, kernel)), head) for head in heads]
            return jnp.stack(values).min(axis=0).sum()

        grad = jax.jit(jax.grad(least))(x)
        assert jnp.isfinite(grad).all()
        step = 1e-3 * grad / (jnp.linalg.norm(grad) + 1e-9)
        risen = (least(x + step) - least(x - step)) / 2
        np.testing.assert_allclose(risen, (grad * step).sum(), rtol=0.02, atol=1e-5)


def test_vmapped_and_second_derivatives_agree_with_a_matrix_product():
    x, kernel, weight = arrays((3, 6), 4, 5)  # three seeds

    def slopes(f):
        slope = jax.grad(lambda x, k, w: (w * f(x, k) ** 2).sum(), argnums=1)
        twice = jax.grad(lambda k: jnp.square(slope(x[0], k, weight[0])).sum())
        return jax.vmap(slope, (0, None, 0))(x, kernel, weight), twice(kernel)

    for got, expected in zip(slopes(product), slopes(jnp.matmul), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by, products", [((0,), 2), ((1,), 2), ((0, 1), 3)])
def test_only_requested_gradients_are_computed(by, products):
    x, kernel, _ = arrays((6,), 40, 36)
    text = str(jax.make_jaxpr(jax.grad(lambda *args: product(*args).sum(), by))(x, kernel))
    assert text.count("dot_general[") == products  # one forward, and one for each gradient


def test_dense_layers_have_the_parameters_of_flax():
    x, _, _ = arrays((6,), 4, 5)
    layer = Dense(5, bias_init=jax.nn.initializers.ones)
    params = layer.init(jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, params) == {"params": {"kernel": (4, 5), "bias": (5,)}}
    np.testing.assert_allclose(
        layer.apply(params, x), x @ params["params"]["kernel"] + 1, rtol=1e-5
    )
