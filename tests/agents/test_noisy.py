"""Noisy layers against Fortunato et al. 2018: means, factors, initial values, variance."""

import functools

import jax
import numpy as np
import pytest

from agents.networks import QNetwork
from agents.noisy import NoisyDense, draw_noises, noisy, squash, with_noise

D, FEATURES = 6, 4


@pytest.fixture(scope="module")
def layer():
    """Return a small layer, its parameters and inputs."""
    module = NoisyDense(FEATURES, 0.5)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, D)).astype(np.float32)
    params = jax.tree.map(np.asarray, jax.jit(module.init)(jax.random.key(0), x))
    # Different sigmas reveal permutations.
    inner = params["params"]
    for name in ("kernel_sigma", "bias_sigma"):
        inner[name] = rng.normal(size=inner[name].shape).astype(np.float32)
    return module, params, x


def apply(module, params, x, seed):
    return np.asarray(_apply(module, params, x, jax.random.key(seed)))


@functools.partial(jax.jit, static_argnums=0)
def _apply(module, params, x, key):
    noise = draw_noises(params, key, 1)
    return module.apply(with_noise(params, jax.tree.map(lambda leaf: leaf[0], noise)), x)


_draw_noises = jax.jit(draw_noises, static_argnums=2)


def test_squash_worked_by_hand():
    np.testing.assert_allclose(squash(np.float32([4.0, -9.0, 0.0])), [2.0, -3.0, 0.0])


def test_weights_without_noise_equal_their_means(layer):
    module, params, x = layer
    inner = params["params"]
    expected = x @ inner["kernel"] + inner["bias"]
    np.testing.assert_allclose(jax.jit(module.apply)(params, x), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(apply(module, params, x, 0), expected)


def test_noise_depends_on_the_key_and_is_shared_by_all_rows(layer):
    module, params, x = layer
    np.testing.assert_array_equal(apply(module, params, x, 0), apply(module, params, x, 0))
    assert (apply(module, params, x, 0) != apply(module, params, x, 1)).all()
    same = np.tile(x[:1], (5, 1))
    out = apply(module, params, same, 0)
    np.testing.assert_allclose(out, np.tile(out[:1], (5, 1)), rtol=1e-6)


def test_noise_is_an_outer_product(layer):
    """With sigmas of 1, the weights differ from the means by a matrix of rank one."""
    module, params, _ = layer
    inner = dict(params["params"])
    inner["kernel_sigma"] = np.ones((D, FEATURES), np.float32)
    inner["bias_sigma"] = np.ones(FEATURES, np.float32)
    bias = np.float64(apply(module, {"params": inner}, np.zeros((1, D), np.float32), 7))[0]
    weights = np.float64(apply(module, {"params": inner}, np.eye(D, dtype=np.float32), 7)) - bias
    noise, behind = weights - inner["kernel"], bias - inner["bias"]
    before = noise[:, 0] / behind[0]
    np.testing.assert_allclose(noise, np.outer(before, behind), atol=1e-5)


def test_outputs_have_the_mean_and_variance_of_the_formula(layer):
    """E f(e)^2 = E|e| = sqrt(2/pi): var y_j = sum_i (2/pi) (s_ij x_i)^2 + sqrt(2/pi) s_j^2."""
    module, params, x = layer
    noises = _draw_noises(params, jax.random.key(3), 40_000)
    outputs = jax.jit(jax.vmap(lambda noise: module.apply(with_noise(params, noise), x)))(noises)
    outputs = np.asarray(outputs)
    inner = jax.tree.map(np.float64, params["params"])
    variance = (2 / np.pi) * np.square(x) @ np.square(inner["kernel_sigma"])
    variance += np.sqrt(2 / np.pi) * np.square(inner["bias_sigma"])
    error = np.sqrt(variance / len(outputs))
    mean = jax.jit(module.apply)(params, x)
    assert (np.abs(outputs.mean(axis=0) - mean) < 5 * error).all()
    np.testing.assert_allclose(outputs.var(axis=0), variance, rtol=0.1)


def test_initial_values_are_those_of_the_paper():
    init = jax.jit(NoisyDense(300, 0.5).init)
    params = init(jax.random.key(0), np.zeros((1, 400), np.float32))["params"]
    params = jax.tree.map(np.asarray, params)
    bound = 400**-0.5
    for name in ("kernel", "bias"):
        assert 0.9 * bound < np.abs(params[name]).max() <= bound
    np.testing.assert_allclose(params["kernel"].std(), bound / 3**0.5, rtol=0.02)
    for name in ("kernel_sigma", "bias_sigma"):
        np.testing.assert_allclose(params[name], 0.5 * bound, rtol=1e-6)


def test_sigmas_learn(layer):
    module, params, x = layer
    key = jax.random.key(0)
    grads = jax.grad(lambda p: _apply(module, p, x, key).sum())(params)["params"]
    assert all((np.asarray(leaf) != 0).all() for leaf in jax.tree.leaves(grads))


def test_noise_draws_are_independent_for_every_layer():
    net = QNetwork(3, "mlp", (20, 30), True, layer=noisy(0.1))
    params = jax.jit(net.init)(jax.random.key(0), np.zeros((1, 4), np.float32))
    noises = jax.tree.map(np.asarray, _draw_noises(params, jax.random.key(1), 2))
    leaves = jax.tree.leaves(noises)
    assert sorted(leaf.shape[1] for leaf in leaves) == [4 + 20, 31, 33, 50, 50]
    factors = np.concatenate(leaves, axis=1)
    assert len(np.unique(factors)) == factors.size
    # Squares are |N(0, 1)|; signs are symmetric.
    np.testing.assert_allclose(np.square(factors).mean(), np.sqrt(2 / np.pi), rtol=0.2)
    np.testing.assert_allclose(factors.mean(), 0, atol=0.2)
    x, apply = np.ones((1, 4), np.float32), jax.jit(net.apply)
    one, two = (
        apply(with_noise(params, jax.tree.map(lambda leaf: leaf[i], noises)), x) for i in range(2)
    )
    assert np.not_equal(one, two).all()


@pytest.mark.parametrize("dueling", [False, True])
def test_every_layer_but_convolutions_is_noisy(dueling):
    shapes = {"mlp": (4,), "minatar": (10, 10, 3)}
    for network, shape in shapes.items():
        net = QNetwork(3, network, (8, 8), dueling, layer=noisy(0.1))
        obs = np.zeros((1, *shape), np.float32)
        params = jax.eval_shape(net.init, jax.random.key(0), obs)["params"]
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
        plain = {path.rpartition("[")[0] for path in paths} - {
            path.rpartition("[")[0] for path in paths if "sigma" in path
        }
        assert all("Torso" in path for path in plain)
        count = sum("kernel_sigma" in path for path in paths)
        # hidden layers and outputs; dueling doubles the last hidden layer and the outputs
        hidden = 2 if network == "mlp" else 1
        assert count == (hidden + 1 if not dueling else hidden + 3)
