"""Batches, networks in NumPy, and comparisons that the tests of agents share."""

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from agents.gaussian import Behaviour
from jaxreplay.methods.refer import Aux
from jaxreplay.types import Sample, Transition

KEY = jax.random.key(0)
STATES = np.eye(2, dtype=np.float32)  # observations of the states of a `table`


def sample_of(
    obs, action, reward, discount, next_obs, weights=None, last=None, extras=None, aux=None
) -> Sample:
    """Wrap arrays `[B, ...]` as a Sample; weights are 1 by default.

    The arrays are NumPy arrays, so that reading them compiles nothing.
    """
    reward, discount = np.float32(reward), np.float32(discount)
    rows, flags = np.arange(len(reward), dtype=np.int32), np.zeros(len(reward), bool)
    obs, action, next_obs = np.asarray(obs), np.asarray(action), np.asarray(next_obs)
    last = flags if last is None else last
    transition = Transition(obs, action, reward, discount, next_obs, flags, last, extras)
    weights = np.float32(np.ones(reward.shape) if weights is None else weights)
    return Sample(rows, transition, weights, rows, aux)


def batch(rows=8, obs=3, actions=None, **more) -> Sample:
    """Return random transitions, of which every third terminates.

    Actions are 2-D, or numbers below `actions`.
    """
    rng = np.random.default_rng(0)
    now, later = rng.normal(size=(2, rows, obs)).astype(np.float32)
    action = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    if actions is not None:
        action = rng.integers(0, actions, rows).astype(np.int32)
    discount = np.where(np.arange(rows) % 3 == 0, 0.0, 0.97)
    return sample_of(now, action, rng.normal(size=rows), discount, later, **more)


def change(sample: Sample, **fields) -> Sample:
    """Return a sample whose transitions have other fields."""
    return sample._replace(transition=sample.transition._replace(**fields))


def compiled(functions, names=("init", "act", "greedy", "update", "feedback")):
    """Return the named functions, such as those of an agent or a replay, compiled except `init`.

    Outside of jit, JAX compiles every operation separately and keeps it: this is faster where
    networks of the same shapes are initialised again and again.
    """
    compile = lambda name, f: f if name == "init" else jax.jit(f)
    return SimpleNamespace(**{name: compile(name, getattr(functions, name)) for name in names})


def start(agent, sample: Sample, key=KEY):
    """Return the initial state of a `compiled` agent as NumPy arrays."""
    t = sample.transition
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)
    return jax.tree.map(np.array, agent.init(key, first(t.obs), first(t.action)))


def table(values):
    """Return parameters of a network with hidden size 2 whose outputs for `STATES` are `values`.

    The hidden unit of the other state has the input -1, so that its relu has a derivative.
    """
    values = np.float32(values).reshape(2, -1)
    layer = lambda kernel: {"kernel": kernel, "bias": np.zeros(kernel.shape[1], np.float32)}
    return {"params": {"MLP_0": {"Dense_0": layer(2 * STATES - 1), "Dense_1": layer(values)}}}


def last_layer(params, name="bias"):
    """Return the bias or kernel of the last layer of a network with one hidden layer."""
    layers = params["params"].get("MLP_0", params["params"])
    return np.asarray(layers["Dense_1"][name])


def relu(x):
    return np.maximum(x, 0)


def softsign(x):
    return x / (1 + np.abs(x))


def softplus(x):
    return np.log1p(np.exp(x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def joined(*parts):
    return np.concatenate(parts, axis=-1)


def perceptron(params, x, activation=relu):
    """Return the outputs of a multilayer perceptron."""
    params = params.get("params", params)
    layers = params.get("MLP_0", params)
    *hidden, last = (layers[name] for name in sorted(layers) if name.startswith("Dense"))
    for layer in hidden:
        x = activation(x @ layer["kernel"] + layer["bias"])
    return x @ last["kernel"] + last["bias"]


def larger(td):
    """Return the error of larger magnitude of two critics, `[B]` of `[2, B]`."""
    return np.where(np.abs(td[0]) >= np.abs(td[1]), td[0], td[1])


def in_double(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def gradient_of(opt_state, b1=0.9):
    """Return the gradient of Adam's first step, which its first moment holds times 1 - b1."""
    moments = optax.tree.get(opt_state, "mu")
    return jax.tree.map(lambda x: np.asarray(x, np.float64) / (1 - b1), moments)


def numerical_gradient(loss, params, step=1e-6):
    """Return the gradient of `loss(params)`, in NumPy, by central differences."""
    leaves, tree = jax.tree.flatten(in_double(params))

    def slope(place, index):
        ends = []
        for sign in (1, -1):
            moved = leaves[place].copy()
            moved[index] += sign * step
            ends.append(loss(tree.unflatten([*leaves[:place], moved, *leaves[place + 1 :]])))
        return (ends[0] - ends[1]) / (2 * step)

    gradients = [np.zeros_like(leaf) for leaf in leaves]
    for place, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            gradients[place][index] = slope(place, index)
    return tree.unflatten(gradients)


def assert_gradient(opt_state, loss, params, b1=0.9):
    """Compare the gradient of Adam's first step with that of a loss in NumPy, and return it."""
    found = gradient_of(opt_state, b1)
    assert_close(found, numerical_gradient(loss, params), rtol=2e-3, atol=2e-5)
    return found


def assert_close(left, right, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), left, right)


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def differs(left, right) -> bool:
    """Return whether any number of two trees differs."""
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return any(bool(np.not_equal(x, y).any()) for x, y in leaves)


def mixed(tau, new, old):
    """Return `tau * new + (1 - tau) * old`."""
    return jax.tree.map(lambda x, y: tau * np.asarray(x) + (1 - tau) * np.asarray(y), new, old)


def quantile_loss(target, quantiles, fractions, kappa=1.0):
    """Return the quantile Huber loss in NumPy, pair by pair."""
    total = 0.0
    for quantile, fraction in zip(quantiles, fractions, strict=True):
        for aim in target:
            u = aim - quantile
            size = abs(u)
            huber = 0.5 * size**2 if size <= kappa else kappa * (size - kappa / 2)
            total += abs(fraction - (u < 0)) * huber / kappa / len(target)
    return total


# ReF-ER

C_MAX = 5.0  # bound of importance ratios


def log_density(x, mean, variance):
    return -0.5 * (np.square(x - mean) / variance + np.log(2 * np.pi * variance)).sum(axis=-1)


def stored(which, mean, variance):
    """Return actions `[B, A]` and their Behaviour, given a policy.

    Steps are near, far (half with ratios above, half with ratios below the bounds), or both.
    """
    rng, row, std = np.random.default_rng(3), np.arange(len(mean))[:, None], np.sqrt(variance)
    far = {"near": row < 0, "far": row >= 0, "both": row % 3 > 0}[which]
    away = mean + 2.5 * std
    action = np.where(far & (row % 2 == 0), away, mean) + 0.2 * std * rng.normal(size=mean.shape)
    wide = variance * rng.uniform(0.8, 1.2, mean.shape)
    behaviour = Behaviour(np.float32(np.where(far, away, mean + 0.1 * std)), np.float32(wide))
    return np.float32(action), behaviour


def trust(mean, variance, behaviour, action):
    """Return a mask of near steps, and the divergences of the policy from the behaviour, `[B]`.

    Without a behaviour, all steps are near, and nothing diverges.
    """
    if behaviour is None:
        return np.ones(len(mean)), np.zeros(len(mean))
    mu, wide = in_double(tuple(behaviour))
    ratio = np.exp(log_density(action, mean, variance) - log_density(action, mu, wide))
    shares = (wide + (mean - mu) ** 2) / variance
    kl = 0.5 * (shares - 1 + np.log(variance / wide)).sum(axis=-1)
    return (ratio > 1 / C_MAX) & (ratio < C_MAX), kl


def refer_aux(beta, q_ret=()):
    return Aux(np.float32(beta), np.log(np.float32(C_MAX)), q_ret)


def each_mixture(test):
    """Parametrize a test over near and far steps, and beta."""
    for name, values in (("beta", [0.0, 0.3, 1.0]), ("which", ["near", "far", "both"])):
        test = pytest.mark.parametrize(name, values)(test)
    return test
