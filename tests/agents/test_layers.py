"""Layers: products and their gradients, normalisation and dropout, residual blocks."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from agents.layers import BatchRenorm, Dropout, LayerOptions
from agents.networks import ResidualMLP, apply, learning
from jaxreplay.loops import product
from tests.agents import tools

ROWS = 8


def arrays(rows, inputs, outputs):
    rng = np.random.default_rng(0)
    shapes = (*rows, inputs), (inputs, outputs), (*rows, outputs)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


# Few or many inputs and outputs, or a single one, with zero, one or two leading axes.
ROWS_OF = (), (6,), (2, 3)
SIZES = (3, 40), (40, 2), (40, 1), (2, 3), (40, 20), (40, 36)


def test_values_and_gradients_agree_with_a_matrix_product():
    given = [arrays(rows, *sizes) for rows in ROWS_OF for sizes in SIZES]

    @functools.partial(jax.jit, static_argnums=0)  # one program for all shapes
    def outputs(f, given):
        square = lambda x, k, weight: (weight * f(x, k) ** 2).sum()
        return [(f(x, k), jax.grad(square, (0, 1))(x, k, weight)) for x, k, weight in given]

    tools.assert_close(outputs(product, given), outputs(jnp.matmul, given), rtol=1e-4, atol=1e-4)


def test_short_dimensions_avoid_matrix_products():
    def shapes(inputs, outputs):
        x, kernel, _ = arrays((6,), inputs, outputs)
        grad = jax.grad(lambda *args: product(*args).sum(), (0, 1))
        text = jax.jit(grad).lower(x, kernel).as_text()
        return sorted(re.findall(r"dot_general.*-> tensor<(\S+)xf32>", text))

    assert shapes(40, 36) == ["40x36", "6x40"]
    assert shapes(40, 2) == ["40", "40"]  # one vector for each output
    assert shapes(3, 36) == ["3x36", "6x3"]


def test_minimum_of_values_has_a_gradient_for_all_sizes():
    """XLA must not recompute the values with other rounding: the gradient tests equality."""
    for inputs, outputs in ((8, 1), (2, 1), (3, 3)):  # no sum that XLA could compute twice
        x, kernel, _ = arrays((6,), inputs, outputs)
        assert "dot_general" in jax.jit(product).lower(x, kernel).as_text()
    for hidden in range(1, 10):
        x, kernel, _ = arrays((6,), 3, hidden)
        heads = jnp.asarray(np.random.default_rng(1).normal(size=(2, hidden, 1)), jnp.float32)

        def least(x, kernel=kernel, heads=heads):
            values = [product(jax.nn.relu(product(x, kernel)), head) for head in heads]
            return jnp.stack(values).min(axis=0).sum()

        run = jax.jit(jax.value_and_grad(least))
        grad = np.asarray(run(x)[1])
        assert np.isfinite(grad).all()
        step = 1e-3 * grad / (np.linalg.norm(grad) + 1e-9)
        risen = (run(x + step)[0] - run(x - step)[0]) / 2
        np.testing.assert_allclose(risen, (grad * step).sum(), rtol=0.02, atol=1e-5)


def test_vmapped_and_second_derivatives_agree_with_a_matrix_product():
    x, kernel, weight = arrays((3, 6), 4, 5)  # three seeds

    @functools.partial(jax.jit, static_argnums=0)
    def slopes(f):
        slope = jax.grad(lambda x, k, w: (w * f(x, k) ** 2).sum(), argnums=1)
        twice = jax.grad(lambda k: jnp.square(slope(x[0], k, weight[0])).sum())
        return jax.vmap(slope, (0, None, 0))(x, kernel, weight), twice(kernel)

    for got, expected in zip(slopes(product), slopes(jnp.matmul), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by, products", [((0,), 1), ((1,), 1), ((0, 1), 2)])
def test_only_requested_gradients_are_computed(by, products):
    x, kernel, _ = arrays((6,), 40, 36)
    grad = jax.grad(lambda *args: product(*args).sum(), by)
    text = jax.jit(grad).lower(x, kernel).as_text()
    assert text.count("dot_general") == products  # one for each gradient


# Normalisation and dropout


class Wrapped(nn.Module):
    """Module around a layer or a function that creates modules."""

    layer: object

    @nn.compact
    def __call__(self, x):
        return self.layer(x, 64)  # pyright: ignore[reportCallIssue]


def normalised(x):
    """Return the layer normalisation of x with scale 1 and shift 0."""
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)


def test_layer_norm_follows_dropout_and_the_last_layer_is_plain():
    options = LayerOptions(dropout=0.25, layer_norm=True)
    hidden, (x, *_) = Wrapped(options.layers()[0]), arrays((ROWS,), 3, 1)

    @jax.jit
    def run():
        variables, rngs = hidden.init(jax.random.key(1), x), {"dropout": jax.random.key(2)}
        kept = {"capture_intermediates": True, "mutable": ["intermediates"]}
        plain = hidden.apply(variables, x)  # without a key
        last = Wrapped(options.layers()[1]).init(jax.random.key(1), x)["params"]
        return *hidden.apply(variables, x, rngs=rngs, **kept), plain, last

    out, stored, plain, last = run()
    inner = stored["intermediates"]
    dense, dropped = (
        np.asarray(inner[name]["__call__"][0], np.float64) for name in ("Dense_0", "Dropout_0")
    )
    kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(kept, dense / 0.75, 0), rtol=1e-5)
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.1)
    np.testing.assert_allclose(out, normalised(dropped), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain, normalised(dense), rtol=1e-4, atol=1e-5)
    assert set(last) == {"Dense_0"}


@pytest.mark.parametrize(
    ("mean", "variance", "warm", "expected", "after", "evaluated"),
    [
        (0.0, 1.0, False, [-1.3415066425, -0.4471688808, 0.4471688808, 1.3415066425],
         (0.03, 1.04), [0.0, 1.9990007494, 3.9980014988, 5.9970022481]),
        (0.0, 1.0, True, [0.0, 1.9990007494, 3.9980014988, 5.9970022481],
         (0.03, 1.04), [0.0, 1.9990007494, 3.9980014988, 5.9970022481]),
        (2.5, 4.0, True, [-1.2498437793, -0.2499687559, 0.7499062676, 1.749781291],
         (2.505, 4.01), [-1.2498437793, -0.2499687559, 0.7499062676, 1.749781291]),
    ],
)  # fmt: skip
def test_batch_renorm_worked_by_hand(mean, variance, warm, expected, after, evaluated):
    statistics = {
        "mean": np.float32([mean]), "variance": np.float32([variance]),
        "batches": np.float32(10 if warm else 9),
    }  # fmt: skip
    out, new, still = renormalised(statistics, np.float32([[0.0], [2.0], [4.0], [6.0]]))
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([new["mean"][0], new["variance"][0]], after, rtol=1e-6)
    assert new["batches"] == statistics["batches"] + 1
    np.testing.assert_allclose(still[:, 0], evaluated, rtol=1e-5, atol=1e-6)


@jax.jit
def renormalised(statistics, x):
    """Return outputs while learning, new statistics, and outputs while not."""
    module = BatchRenorm(warmup=10)
    params = {"scale": jnp.ones(1), "shift": jnp.zeros(1)}
    variables = {"params": params, "batch_stats": statistics}
    out, new = learning(module, variables, x)
    return out, new["batch_stats"], apply(module, variables, x)


def test_batch_renorm_clips_its_corrections_and_starts_from_a_unit_normal():
    variables = jax.jit(BatchRenorm().init)(jax.random.key(0), np.zeros((1, 1), np.float32))
    assert jax.tree.leaves(variables["batch_stats"]) == [0, 0, 1]  # batches, mean, variance
    assert jax.tree.leaves(variables["params"]) == [1, 0]  # scale, shift
    statistics = variables["batch_stats"] | {"batches": np.float32(10)}
    out, *_ = renormalised(statistics, np.float32([[90.0], [110.0]]))  # mean 100, std 10
    np.testing.assert_allclose(out[:, 0], [5 - 3, 5 + 3], rtol=1e-4)


def test_residual_network_agrees_with_numpy():
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    network = ResidualMLP((4, 4, 1))
    out, params = jax.jit(network.init_with_output)(jax.random.key(0), np.float32(x))
    params = params["params"]
    layer = [
        lambda x, p=params[f"Dense_{n}"]: x @ np.float64(p["kernel"]) + np.float64(p["bias"])
        for n in range(6)
    ]
    h = layer[0](x)
    for first in (1, 3):
        h = h + layer[first + 1](tools.relu(layer[first](normalised(h))))
    np.testing.assert_allclose(out, layer[5](normalised(h)), rtol=1e-4, atol=1e-5)
    assert params["Dense_1"]["kernel"].shape == (4, 16)


def test_dropout_zeroes_numbers_independently_and_keeps_the_mean():
    x = jnp.ones((4_000, 5))
    out = np.asarray(Dropout(0.25).apply({}, x, rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(out)) == {0.0, np.float32(4 / 3)}
    dropped = out == 0
    np.testing.assert_allclose(dropped.mean(axis=0), 0.25, atol=0.03)  # 4 standard errors
    np.testing.assert_allclose(np.corrcoef(dropped.T), np.eye(5), atol=0.07)
    np.testing.assert_array_equal(Dropout(0.25).apply({}, x), x)
