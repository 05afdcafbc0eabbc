"""Class-imbalanced digits: prioritised sampling in supervised learning.

Schaul et al. 2016, Sec. 6, App. B.3 and Fig. 5: a classifier of handwritten digits learns from a
training set with few images of 0 to 4 and many of 5 to 9; validation and test sets are balanced.
The replay memory contains the training set, and the TD error of an example is its loss when it was
last drawn. The paper uses MNIST; this module uses scikit-learn's 8x8 digits.

The training set has 100 images of each common digit and 4 of each rare digit. The paper keeps 1 %
of the rare digits, about 60 images each, which would be a single image here. Arm "informed"
multiplies the loss of rare digits by the imbalance: 100 in the paper, 25 here.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from flax import linen as nn

from agents.layers import dense
from agents.networks import Params
from experiments.papers.entry import Computation, Request, Row
from jaxreplay.methods import per, uniform
from jaxreplay.replay import Replay
from jaxreplay.sampler import Sampler
from jaxreplay.types import Array, Transition

DIGITS_IN_ALL = 10
RARE = 5  # digits below this one are rare
STEP_SIZES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_BRIGHTEST = 16  # largest value of a pixel


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(
    {
        "uniform": uniform.sampler(),
        # Importance weights are 1, so that rare digits weigh more in the loss.
        "per": per.sampler(per.PERConfig(alpha=1.0, beta=0.0, beta_end=0.0)),
    }
)
# Arm -> key of SAMPLERS. "informed" draws uniformly and multiplies the loss of rare digits.
ARMS = MappingProxyType({"uniform": "uniform", "informed": "uniform", "per": "per"})


class Examples(NamedTuple):
    """Images and their digits."""

    images: Array  # [n, 8, 8] float32, 0 to 1
    labels: Array  # [n] int32, 0 to 9


class Sets(NamedTuple):
    """Training, validation and test set of one seed."""

    train: Examples  # imbalanced
    validation: Examples  # balanced, like the test set
    test: Examples


_Train = Callable[[Sets, Array, Array, Array], dict[str, Array]]


class Classifier(nn.Module):
    """A small LeNet (LeCun et al. 1998): two convolutional and two dense layers.

    Maps images `[B, 8, 8]` to logits `[B, 10]`. Convolutions are 3x3 with zero padding and have 6
    and 16 channels, as in LeNet-5; each is followed by ReLU and 2x2 max pooling. The initialisation
    is Torch's, which the paper used.
    """

    hidden: int = 32  # units of the first dense layer

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Return logits."""
        x = images[..., None]
        for channels in (6, 16):
            x = _pool(nn.relu(_convolution(x, channels)))
        x = nn.relu(dense(x.reshape(x.shape[0], -1), self.hidden))
        return dense(x, DIGITS_IN_ALL)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's images `[1797, 8, 8]` float32 in [0, 1], and digits `[1797]` int32.

    The images are the test set of Alpaydin and Kaynak's optical recognition of handwritten digits
    (UCI, CC BY 4.0), with at least 174 images of each digit.
    """
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    held: Any = load_digits()
    return (held.images / _BRIGHTEST).astype(np.float32), held.target.astype(np.int32)


def split(
    labels: np.ndarray, seed: int, train: int, kept: int, validation: int
) -> list[np.ndarray]:
    """Split examples at random into training, validation and test sets.

    Args:
      labels: `[n]` int, 0 to 9.
      seed: seed of the random split.
      train: number of training examples of each common digit.
      kept: number of training examples of each rare digit.
      validation: number of validation examples of each digit.

    Returns:
      Three arrays of indices into `labels`, without overlap. The test set has the same number of
      examples of each digit: as many as remain of the scarcest one.
    """
    rng = np.random.default_rng(seed)
    places = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(DIGITS_IN_ALL)]
    test = min(map(len, places)) - train - validation
    rest = [each[train:] for each in places]
    parts = (
        [each[: kept if digit < RARE else train] for digit, each in enumerate(places)],
        [each[:validation] for each in rest],
        [each[validation : validation + test] for each in rest],
    )
    return [np.concatenate(part) for part in parts]


def learn(
    sampler: Sampler,
    options: Mapping[str, Any],
    sets: Sets,
    key: Array,
    step_size: Array,
    factor: Array,
) -> dict[str, Array]:
    """Train one classifier by stochastic gradient descent without momentum; pure and vmappable.

    Args:
      sampler: sampler of the replay method.
      options: `updates` (number of updates), `points` (P, number of measurements after the first)
        and `batch` (batch size).
      sets: training, validation and test set.
      key: PRNG key.
      step_size: `[]`, learning rate for the mean loss of a batch.
      factor: `[]`, factor of the loss of rare digits.

    Returns:
      Results of `measure`, each `[P + 1]`: before the first update, and then after each
      `updates // P` updates.
    """
    count = sets.train.labels.shape[0]
    replay = Replay(sampler, capacity=count, num_envs=count, batch_size=options["batch"])
    key_network, key_replay, key_draws = jax.random.split(key, 3)
    params = Classifier().init(key_network, sets.train.images[:1])
    start = params, fill(replay, sets.train, key_replay), jnp.zeros((), jnp.int32)

    def update(_: Array, carry: tuple[Params, Any, Array]) -> tuple[Params, Any, Array]:
        params, memory, clock = carry
        key = jax.random.fold_in(key_draws, clock)
        params, memory, _ = learn_once(replay, params, memory, key, step_size, factor)
        return params, memory, clock + 1

    def stretch(carry: Any, count: Array) -> tuple[Any, dict[str, Array]]:
        carry = jax.lax.fori_loop(0, count, update, carry)
        return carry, measure(replay, sets, *carry[:2])

    # The first step of the scan makes no updates, so that `measure` is compiled only once.
    every = options["updates"] // options["points"]
    counts = jnp.full(options["points"] + 1, every).at[0].set(0)
    return jax.lax.scan(stretch, start, counts)[1]


def fill(replay: Replay, train: Examples, key: Array) -> Any:
    """Return a memory that contains every training example once, with equal probabilities.

    An example is a terminal transition with the image as its observation and the digit as its
    action.
    """
    count = train.labels.shape[0]
    zeros, ends = jnp.zeros(count, jnp.float32), jnp.ones(count, bool)
    stored = Transition(train.images, train.labels, zeros, zeros, first=ends, last=ends)
    return replay.add(replay.init(key, jax.tree.map(lambda x: x[0], stored)), stored)


def learn_once(
    replay: Replay, params: Params, memory: Any, key: Array, step_size: Array, factor: Array
) -> tuple[Params, Any, Array]:
    """Draw a batch, take a gradient step, and set priorities to the losses before the step.

    `factor` multiplies the loss of rare digits in the gradient, and not in the priorities.

    Returns:
      Parameters, memory, and the indices of the batch `[B]`.
    """
    sample = replay.sample(memory, key)
    labels = sample.transition.action

    def loss(params: Params) -> tuple[Array, Array]:
        own = losses(params, Examples(sample.transition.obs, labels))
        return (sample.weights * jnp.where(labels < RARE, factor, 1.0) * own).mean(), own

    gradient, own = jax.grad(loss, has_aux=True)(params)
    params = jax.tree.map(lambda x, slope: x - step_size * slope, params, gradient)
    return params, replay.update(memory, sample, td_error=own), sample.indices


def losses(params: Params, examples: Examples) -> Array:
    """Return the negative log likelihood `[n]` of the digits, in nats."""
    logits = cast(Array, Classifier().apply(params, examples.images))
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples.labels)


def measure(replay: Replay, sets: Sets, params: Params, memory: Any) -> dict[str, Array]:
    """Return scalars by name, such as "test error" (share misclassified) and "test loss" (nats).

    "rare draws" is the expected share of rare digits in draws, and "effective memory" the effective
    sample size as a share of the memory, 1 / (n sum P^2).
    """
    together = jax.tree.map(lambda *parts: jnp.concatenate(parts), *sets)
    logits = cast(Array, Classifier().apply(params, together.images))
    wrong = logits.argmax(axis=1) != together.labels
    own = optax.softmax_cross_entropy_with_integer_labels(logits, together.labels)
    found, end = {}, 0
    for name, examples in sets._asdict().items():
        begin, end = end, end + examples.labels.shape[0]
        found[f"{name} error"] = wrong[begin:end].mean()
        found[f"{name} loss"] = own[begin:end].mean()
    count = sets.train.labels.shape[0]
    chance = replay.probability(memory, jnp.arange(count))
    found["rare draws"] = jnp.where(sets.train.labels < RARE, chance, 0.0).sum()
    found["effective memory"] = 1.0 / (count * jnp.square(chance).sum())
    return found


def table(request: Request) -> pd.DataFrame:
    """Return learning curves of classifiers on imbalanced digits.

    The step size of each arm has the lowest validation error after the last update, averaged over
    the first `searched` seeds; ties are broken by the validation loss. For each seed, all arms have
    the same sets, initial weights and random numbers for draws.

    Returns:
      Rows with columns kind, arm, seed, step_size, measure and value. Kinds "curve" and "draws" are
      curves over column updates, "final" is the value after the last update, "mean" the mean over
      all measurements but the first, and "search" the validation error and loss after the last
      update for every step size.
    """
    options = request.options
    sets = _sets(*load(), options)
    keys = jax.vmap(jax.random.key)(jnp.arange(options["seeds"]))
    train = {name: _over_seeds_and_steps(sampler, options) for name, sampler in SAMPLERS.items()}
    rows = []
    for name, sampler in ARMS.items():
        rows += request.part(name, partial(_of_arm, request, name, train[sampler], sets, keys))
    return pd.DataFrame(rows)


def _of_arm(request: Request, name: str, train: _Train, sets: Sets, keys: Array) -> list[Row]:
    """Choose the step size of an arm; return the rows of its training."""
    options = request.options
    few = slice(min(options["searched"], options["seeds"]))
    sizes = jnp.asarray(options["step_sizes"], jnp.float32)
    factor = jnp.asarray(options["factor"] if name == "informed" else 1.0)
    tried = jax.device_get(train(jax.tree.map(lambda x: x[few], sets), keys[few], sizes, factor))
    last = {measure: values[..., -1] for measure, values in tried.items()}  # [T, S]
    best = choose(last["validation error"], last["validation loss"])
    curves = {measure: values[best] for measure, values in tried.items()}  # [S, P + 1]
    if few.stop < options["seeds"]:
        found = jax.device_get(train(sets, keys, sizes[best : best + 1], factor))
        curves = {measure: values[0] for measure, values in found.items()}
    size = options["step_sizes"][best]
    wrong = curves["test error"][:, -1].mean()
    request.say(f"{name}: step size {size:g}, {wrong:.1%} of the test set wrong")
    search = [
        {"kind": "search", "arm": name, "step_size": tried_size, "measure": measure, "seed": seed,
         "value": float(value)}
        for measure in ("validation error", "validation loss")
        for tried_size, values in zip(options["step_sizes"], last[measure], strict=True)
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return search + _rows(name, size, curves, options)


def choose(error: np.ndarray, loss: np.ndarray) -> int:
    """Return the index of the best of T step sizes, given validation error and loss `[T, S]`."""
    wrong, mean_loss = error.mean(axis=1).round(6), np.nan_to_num(loss, nan=np.inf).mean(axis=1)
    return int(np.lexsort((mean_loss, wrong))[0])


def _over_seeds_and_steps(sampler: Sampler, options: Mapping[str, Any]) -> _Train:
    """Return a compiled function: sets, keys `[S]`, step sizes `[T]`, factor -> `[T, S, P + 1]`."""
    seeds = jax.vmap(partial(learn, sampler, options), in_axes=(0, 0, None, None))
    return jax.jit(jax.vmap(seeds, in_axes=(None, None, 0, None)))


def _sets(images: np.ndarray, labels: np.ndarray, options: Mapping[str, Any]) -> Sets:
    """Return the sets of all seeds, with a leading axis `[S]`."""
    sizes = {name: options[name] for name in ("train", "kept", "validation")}
    parts = [split(labels, seed, **sizes) for seed in range(options["seeds"])]
    return Sets(
        *(
            Examples(jnp.asarray(images[places]), jnp.asarray(labels[places]))
            for places in (np.stack(own) for own in zip(*parts, strict=True))
        )
    )


_CURVES = ("test error", "test loss", "train loss")  # in the order of the panels


def _rows(
    arm: str, step_size: float, curves: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> list[Row]:
    """Return the rows of the curves `[S, P + 1]` of an arm, their last values and means."""
    every, about = options["updates"] // options["points"], {"arm": arm, "step_size": step_size}
    rows = []
    for kind, measures in (("curve", _CURVES), ("draws", ("rare draws", "effective memory"))):
        rows += [
            {"kind": kind, **about, "measure": measure, "updates": point * every, "seed": seed,
             "value": float(value)}
            for measure in measures
            for seed, values in enumerate(curves[measure])
            for point, value in enumerate(values)
        ]  # fmt: skip
    for kind, taken in (("final", slice(-1, None)), ("mean", slice(1, None))):
        rows += [
            {"kind": kind, **about, "measure": measure, "seed": seed, "value": float(value)}
            for measure in curves
            for seed, value in enumerate(curves[measure][:, taken].mean(axis=1))
        ]
    return rows


def _convolution(x: Array, channels: int) -> Array:
    """Convolve 3x3 inside a Flax module: `[B, H, W, C]` -> `[B, H, W, channels]`.

    The convolution is a product of patches and a matrix, so that all convolutions become one
    batched product when seeds and step sizes are vmapped.
    """
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return dense(jnp.concatenate(shifted, axis=-1), channels)


def _pool(x: Array) -> Array:
    """Return 2x2 max pooling: `[B, H, W, C]` -> `[B, H / 2, W / 2, C]`."""
    rows, height, width, channels = x.shape
    return x.reshape(rows, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


DIGITS = Computation(
    "digits",
    table,
    {
        "seeds": 64, "searched": 16, "updates": 3000, "points": 60, "batch": 60, "factor": 25.0,
        "train": 100, "kept": 4, "validation": 30, "step_sizes": STEP_SIZES,
    },
    {"seeds": 2, "updates": 20, "points": 5, "step_sizes": (0.1,)},
    ("experiments/papers/digits.py",), "share wrong", False, minutes=43, needs="sklearn",
    looks=8,
)  # fmt: skip
