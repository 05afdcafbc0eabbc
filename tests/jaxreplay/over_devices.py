"""Replays divided over 2, 4 and 8 devices, against NumPy's single list of all transitions.

`test_devices.py` runs these tests in a process with eight virtual devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxreplay import Replay, devices, loops
from jaxreplay.contrib import eper, geometric, relo
from jaxreplay.methods import lap, per, pser, uniform
from jaxreplay.methods.lap import LAPConfig
from jaxreplay.methods.per import PERConfig
from jaxreplay.methods.pser import PSERConfig

E, C, B, STEPS = 2, 12, 8, 9  # of one device: environments, capacity, batch; cycles of the loop
EXAMPLE = {"id": jnp.zeros((), jnp.int32), "first": jnp.zeros((), bool)}

SAMPLERS = {
    "uniform": uniform.sampler(),
    "per": per.sampler(PERConfig().for_run(10)),
    "per_buffer": per.sampler(PERConfig(normalise="buffer", sampling="iid")),
    "per_none": per.sampler(PERConfig(normalise="none", beta=0.7)),
    "per_stored": per.sampler(PERConfig(maximum="stored")),
    "per_td": per.sampler(PERConfig(initial="td")),
    "lap": lap.sampler(LAPConfig(kappa=0.1)),
    "eper": eper.sampler(),
    "relo": relo.sampler(),
    "geometric": geometric.sampler(geometric.GeometricConfig(fade=0.9)),
    "pser": pser.sampler(PSERConfig(rho=0.6)),
    "pser_add": pser.sampler(PSERConfig(combine="add", decay_on_add=True)),
}


# Numbers of devices; the slow tests have all combinations.
QUICK = {"per": (4,), "uniform": (4,), "lap": (8,), "pser": (2,), "per_buffer": (4,)}
QUICK |= {"per_stored": (2,), "per_td": (2,)}


def cases(*names):
    """Parametrize a test over samplers and numbers of devices."""
    pairs = [(name, count) for name in names or SAMPLERS for count in (2, 4, 8)]
    marked = [
        pytest.param(*pair, marks=() if pair[1] in QUICK.get(pair[0], ()) else pytest.mark.slow)
        for pair in pairs
    ]
    return pytest.mark.parametrize(("name", "count"), marked)


def cycle(replay, state, time):
    """Add a step, replay a batch and update it; return what happened."""
    device = jax.lax.axis_index("d")
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), time), device)
    td_key, new_key, key = jax.random.split(key, 3)
    row = {
        "id": time * 1000 + device * E + jnp.arange(E),
        "first": jnp.full(E, time % 4 == 0),
    }
    # Errors of devices differ in scale, and so do the sums of their priorities.
    new = {"td_error": jax.random.normal(new_key, (E,)) * (1 + device)}
    state = replay.add(state, row, **{name: new[name] for name in replay.requires.feedback_of_new})
    slots = jnp.arange(C)
    before = replay.probability(state, slots)
    batch = replay.sample(state, key)
    td = jax.random.normal(td_key, (B,)) * (1 + device) + 0.01
    state = replay.update(state, batch, **dict.fromkeys(replay.requires.feedback, td))
    seen = {
        "indices": batch.indices, "weights": batch.weights, "probability": batch.probability,
        "all": before, "td": td, "new_td": new["td_error"], "metrics": replay.metrics(state),
        "after": replay.probability(state, slots),
    }  # fmt: skip
    return state, seen


@functools.cache
def run(name, count, checked=False, divided=True):
    """Return the last state and what every device saw in every cycle, `[D, STEPS, ...]`."""
    axis_name = "d" if divided else None
    replay = Replay(SAMPLERS[name], capacity=C, batch_size=B, num_envs=E, axis_name=axis_name)

    def loop(_):
        state = replay.init(jax.random.key(0), EXAMPLE)
        step = functools.partial(cycle, replay)
        return jax.tree.map(lambda x: x[None], jax.lax.scan(step, state, jnp.arange(STEPS)))

    mesh = Mesh(np.array(jax.devices()[:count]), "d")
    program = jax.shard_map(loop, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=checked)
    return jax.tree.map(np.asarray, jax.jit(program)(jnp.zeros(count)))


@cases()
def test_probabilities_are_fractions_of_the_whole_batch(name, count):
    _, seen = run(name, count)
    np.testing.assert_allclose(seen["all"].sum(axis=(0, 2)), 1.0, rtol=1e-5)
    np.testing.assert_allclose(seen["all"].sum(axis=2), 1 / count, rtol=1e-5)
    drawn = np.take_along_axis(seen["all"], seen["indices"], axis=2)
    np.testing.assert_allclose(drawn, seen["probability"], rtol=1e-6)


@cases(*[name for name in SAMPLERS if name.startswith(("per", "pser"))])
def test_importance_weights_are_those_of_a_single_list(name, count):
    _, seen = run(name, count)
    sampler = SAMPLERS[name]
    weight = sampler.config.weight if name.startswith("pser") else sampler.weight
    for time in range(STEPS):
        chance = seen["all"][:, time].ravel()  # the single list
        size = count * min(E * (time + 1), C)
        assert (chance > 0).sum() == size
        beta = float(weight.exponent(jnp.int32(time)))
        listed = (size * np.where(chance > 0, chance, np.inf)) ** -beta
        slots = seen["indices"][:, time] + C * np.arange(count)[:, None]
        expected = listed[slots]
        if weight.normalise == "batch":
            expected = expected / expected.max()
        if weight.normalise == "buffer":
            expected = expected / listed.max()
        np.testing.assert_allclose(seen["weights"][:, time], expected, rtol=2e-5)


@cases("uniform", "lap")
def test_importance_weights_of_methods_without_them_are_1(name, count):
    assert (run(name, count)[1]["weights"] == 1).all()


class SingleList:
    """The priorities of PER and LAP, of all devices, one transition after the other."""

    def __init__(self, count, power):
        self.leaves, self.power, self.maximum = np.zeros((count, C)), power, 1.0

    def add(self, time, new_td, sampler):
        slots = (time * E + np.arange(E)) % C
        if sampler.maximum == "stored":
            self.leaves[:, slots] = 0
            self.maximum = self.leaves.max() or 1.0
        if sampler.initial == "td":
            self.leaves[:, slots] = self.power(new_td)
            self.maximum = max(self.maximum, self.leaves[:, slots].max())
        else:
            self.leaves[:, slots] = self.maximum

    def update(self, indices, td):
        powers = self.power(td)
        for device, slots in enumerate(indices):
            self.leaves[device, slots] = powers[device]  # of equal slots, the last
        self.maximum = max(self.maximum, powers.max())

    def probability(self):
        return self.leaves / self.leaves.sum(axis=1, keepdims=True) / len(self.leaves)


POWERS = {
    "per": lambda td: (np.abs(td) + 1e-6) ** 0.6,
    "lap": lambda td: np.maximum(np.abs(td), 0.1) ** 0.4,
}


@cases("per", "per_buffer", "per_stored", "per_td", "lap", "eper")
def test_priorities_are_those_of_a_single_list(name, count):
    """New transitions receive the largest priority of all devices; metrics are of all."""
    _, seen = run(name, count)
    single = SingleList(count, POWERS["lap" if name == "lap" else "per"])
    for time in range(STEPS):
        single.add(time, seen["new_td"][:, time], SAMPLERS[name])
        np.testing.assert_allclose(seen["all"][:, time], single.probability(), rtol=2e-5)
        single.update(seen["indices"][:, time], seen["td"][:, time])
        np.testing.assert_allclose(seen["after"][:, time], single.probability(), rtol=2e-5)
        metrics = {key: value[:, time] for key, value in seen["metrics"].items()}
        listed = single.leaves[:, : min(E * (time + 1), C)].ravel()
        maximum = listed.max() if name == "per_stored" else single.maximum
        expected = {
            "mean_priority": listed.mean(), "max_priority": maximum, "skipped_leaves": 0.0,
            "dropped": 0.0, **{f"priority_p{p}": np.percentile(listed, p) for p in (10, 50, 90)},
        }  # fmt: skip
        for key, value in expected.items():
            np.testing.assert_allclose(metrics[key], value, rtol=2e-5, err_msg=key)


@cases("uniform", "per", "per_buffer", "pser")
def test_transitions_are_drawn_with_their_probabilities(name, count):
    """Frequencies in 4,000 batches, for transitions of all devices in one list."""
    replay = Replay(SAMPLERS[name], capacity=C, batch_size=B, num_envs=E, axis_name="d")
    state, _ = run(name, count)
    mesh, draws = Mesh(np.array(jax.devices()[:count]), "d"), 4_000

    def draw(state):
        state = jax.tree.map(lambda x: x[0], state)
        keys = jax.random.split(
            jax.random.fold_in(jax.random.key(1), jax.lax.axis_index("d")), draws
        )
        slots = jax.lax.map(lambda key: replay.sample(state, key).indices, keys)
        found = jnp.zeros(C).at[slots.ravel()].add(1.0)
        return found[None], replay.probability(state, jnp.arange(C))[None]

    program = jax.shard_map(draw, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    found, chance = map(np.asarray, jax.jit(program)(state))
    total = draws * B * count
    assert found.sum() == total
    error = (found / total - chance) / np.sqrt(chance / total)
    assert np.abs(error).max() < 4.5  # standard deviations of independent draws, an upper bound


@pytest.mark.parametrize("name", ["pser", "per_stored"])
def test_checks_of_shard_map_pass_and_change_nothing(name):
    unchecked, checked = run(name, 2), run(name, 2, checked=True)
    jax.tree.map(np.testing.assert_array_equal, unchecked, checked)


@pytest.mark.parametrize("name", ["per_buffer", pytest.param("pser", marks=pytest.mark.slow)])
def test_one_device_gives_the_numbers_of_a_replay_without_axis(name):
    jax.tree.map(np.testing.assert_array_equal, run(name, 1)[1], run(name, 1, divided=False)[1])


@pytest.mark.parametrize("checked", [False, True])
def test_mean_gradients_are_those_of_the_whole_batch(checked):
    def loss(weights, rows):
        return jnp.square(rows @ weights - 1.0).mean()

    def gradient(weights, rows):
        own = loops.varying(weights) if checked else weights
        return devices.mean(jax.grad(loss)(own, rows), "d")

    mesh = Mesh(np.array(jax.devices()), "d")
    rows, weights = jax.random.normal(jax.random.key(0), (16, 3)), jnp.arange(3.0)
    mean = jax.shard_map(
        gradient, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=checked
    )
    expected = jax.grad(loss)(weights, rows)
    np.testing.assert_allclose(jax.jit(mean)(weights, rows), expected, rtol=1e-5)


def test_variances_of_large_values_are_those_of_the_whole():
    values = 1000.0 + 0.1 * jax.random.normal(jax.random.key(0), (64,))
    mesh = Mesh(np.array(jax.devices()), "d")
    variance = jax.shard_map(
        lambda x: devices.variance(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
    )
    np.testing.assert_allclose(variance(values), np.var(np.float64(values)), rtol=1e-3)
