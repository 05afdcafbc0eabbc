"""The replay microscope on small replays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, microscope, mixing, objectives
from jaxreplay.contrib import geometric
from jaxreplay.methods import METHODS, per, uniform
from jaxreplay.methods.per import PERConfig
from jaxreplay.microscope import STORED, Counts, Schedule
from jaxreplay.types import IGNORED
from tests.refusals import refused

KEY = jax.random.key(0)
EXAMPLE = Transition(
    obs=np.zeros(2, np.float32), reward=np.float32(0), first=np.zeros((), bool),
    last=np.zeros((), bool),
)  # fmt: skip
PER = PERConfig(epsilon=0.0, sampling="iid")


def filled(sampler, rewards, num_envs=1, capacity=None, length=3):
    """Return a replay with rewards `[T, E]` in episodes of 3 steps, and its state."""
    rewards = np.asarray(rewards, np.float32).reshape(-1, num_envs)
    replay = Replay(sampler, capacity=capacity or rewards.size, batch_size=2, num_envs=num_envs)
    add, state = jax.jit(replay.add), replay.init(KEY, EXAMPLE)
    for time, row in enumerate(rewards):
        flags = [np.full(num_envs, time % length == step) for step in (0, length - 1)]
        obs = np.stack([row, np.cos(row)], axis=1)
        state = add(state, Transition(obs=obs, reward=row, first=flags[0], last=flags[1]))
    return replay, state


def reward(transition):
    return {"td_error": transition.reward}


def look(replay, state, methods=(), feedback=reward, **options):
    return microscope.look(replay, state, feedback, key=KEY, methods=methods, **options)


def test_priorities_by_hand():
    replay, state = filled(per.sampler(PER), [0.2, -0.6, 0.5, 0.1])
    batch = replay.sample(state, KEY)._replace(indices=jnp.array([2, 3]), version=jnp.array([3, 4]))
    state = replay.update(state, batch, td_error=jnp.array([0.5, 0.1]))
    counts = Counts(np.array([0, 1, 1, 1]), np.array([-1, 1, 2, 1]))
    seen = look(replay, state, {"per": per.method(PER)}, counts=counts)
    expected = {STORED: [0.34353, 0.34353, 0.22665, 0.08629],
                "": [0.18777, 0.36298, 0.32537, 0.12388]}  # fmt: skip
    for end, values in expected.items():
        np.testing.assert_allclose(seen.slots[f"P per{end}"], values, atol=1e-5)
    weights = seen.slots["w per"]  # up to a factor, (N P)^-0.4
    np.testing.assert_allclose(weights, (4 * np.array(expected[""])) ** -0.4, rtol=1e-4)
    assert seen.run["staleness"] == pytest.approx(0.156, abs=1e-3)
    assert seen.run["rank correlation"] == pytest.approx(0.632, abs=1e-3)
    assert seen.run["rank correlation of drawn"] == pytest.approx(1)
    assert seen.run["never drawn"] == 0.25 and not seen.forecasts
    assert seen.methods["per"]["TV to run"] == seen.run["staleness"]
    np.testing.assert_array_equal(seen.slots["episode"], [0, 0, 0, 1])
    np.testing.assert_array_equal(seen.slots["age"], [3, 2, 1, 0])
    assert seen.gradients == "output"


def test_geometric_probabilities_by_hand():
    half = {"geometric": geometric.method(geometric.GeometricConfig(fade=0.5))}
    seen = look(*filled(uniform.sampler(), np.ones(4)), half)
    np.testing.assert_allclose(
        seen.slots["P geometric"][::-1], [0.53333, 0.26667, 0.13333, 0.06667], atol=1e-5
    )
    row = seen.methods["geometric"]
    assert row["basis"] == "none"
    assert row["expected age"] == pytest.approx(0.7333, abs=1e-4)
    assert row["recency"] == pytest.approx(0.756, abs=1e-3)
    # Two environments, after a wraparound; q = 1/2 per step.
    half = {"geometric": geometric.method(geometric.GeometricConfig(fade=0.5**0.5))}
    seen = look(*filled(uniform.sampler(), np.ones((5, 2)), 2, 8), half)
    np.testing.assert_array_equal(seen.slots["slot"], [2, 3, 4, 5, 6, 7, 0, 1])
    np.testing.assert_array_equal(seen.slots["age"], [6, 6, 4, 4, 2, 2, 0, 0])
    np.testing.assert_allclose(
        seen.slots["P geometric"], np.repeat([0.03333, 0.06667, 0.13333, 0.26667], 2), atol=1e-5
    )


@pytest.mark.parametrize("name", ["pser", "reaper"])
def test_the_exact_pass_equals_a_replay_that_was_filled_with_the_method(name):
    """Also after a wraparound, for two environments."""
    rewards = np.random.default_rng(0).normal(size=(11, 2))
    entry = METHODS[name]
    seen = look(*filled(uniform.sampler(), rewards, 2, 16), [name])
    replay, state = filled(entry.method(entry.config()).sampler, rewards, 2, 16)
    slots = jnp.arange(16)
    td = jnp.asarray(np.roll(rewards[-8:], 3, axis=0).ravel(), jnp.float32)
    state = jax.jit(replay.refresh)(state, slots, td_error=td)
    expected = replay.probability(state, slots)
    np.testing.assert_allclose(
        seen.slots[f"P {name}"], np.asarray(expected)[seen.slots["slot"]], rtol=1e-4
    )


def test_probabilities_are_the_frequencies_of_draws():
    replay, state = filled(per.sampler(PER), [0.2, 0.6, 0.5, 0.1, 3.0, 0.01])
    state = replay.refresh(state, jnp.arange(6), td_error=jnp.array([0.2, 0.6, 0.5, 0.1, 3, 0.01]))
    seen = look(replay, state)
    draw = jax.jit(lambda key: replay.sampler.sample(state.sampler, state.ring, key, 200_000))
    counts = np.bincount(np.asarray(draw(KEY).indices), minlength=6)
    chance = seen.slots[f"P run{STORED}"]
    np.testing.assert_allclose(counts / 200_000, chance, atol=5 * np.sqrt(0.25 / 200_000))
    # The state is already exact.
    assert seen.run["staleness"] < 1e-6


def test_gradients_of_batches():
    rewards = np.random.default_rng(1).normal(size=12)
    params = jnp.array([0.5, -1.0])

    def td_error(params, t):
        return t.reward - t.obs @ params

    def gradient(t, weights):
        def loss(params):
            return (weights * objectives.mse(td_error(params, t))).mean()

        return {"params": jax.grad(loss)(params)}

    methods = {
        "per": per.method(PERConfig(beta=1.0, beta_end=1.0)),
        "lap": METHODS["lap"].method(METHODS["lap"].config(kappa=0.1)),
        "laber": METHODS["laber"].method(METHODS["laber"].config()),
    }
    replay, state = filled(uniform.sampler(), rewards)
    seen = look(
        replay, state, methods, lambda t: {"td_error": td_error(params, t)}, gradient=gradient
    )
    assert seen.gradients == "parameters"
    # A reference for LAP, with the Huber loss.
    obs = np.stack([rewards, np.cos(rewards)], axis=1)
    td = rewards - obs @ np.asarray(params)
    single = -td[:, None] * obs
    chance = np.maximum(np.abs(td), 0.1) ** 0.4
    chance /= chance.sum()
    scale = np.minimum(1, 0.1 / np.abs(td))
    expected, mean = (chance * scale) @ single, single.mean(axis=0)
    cosine = expected @ mean / np.linalg.norm(expected) / np.linalg.norm(mean)
    second = (chance * scale**2) @ np.square(single).sum(axis=1)
    noise = (second / (expected @ expected) - 1) / 2
    assert seen.methods["lap"]["cosine"] == pytest.approx(cosine, rel=1e-3)
    assert seen.methods["lap"]["noise"] == pytest.approx(noise, rel=1e-3)
    for name in ("uniform", "per", "laber"):
        assert seen.methods[name]["bias"] == pytest.approx(0, abs=1e-3)
        assert seen.methods[name]["noise / oracle"] >= 1 - 1e-3
    # Gradients of a part of the transitions.
    part = look(
        replay, state, methods, lambda t: {"td_error": td_error(params, t)}, gradient=gradient,
        gradients=5,
    )  # fmt: skip
    assert part.methods["uniform"]["noise"] != seen.methods["uniform"]["noise"]
    np.testing.assert_array_equal(part.slots["P lap"], seen.slots["P lap"])


def test_a_look_changes_nothing_and_repeats_itself():
    replay, state = filled(per.sampler(), np.linspace(-1, 1, 8))
    before = jax.tree.map(np.array, jax.tree.map(np.asarray, state))
    first, second = (look(replay, state, ["rank"], schedule=Schedule()) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, state))
    for name, values in first.slots.items():
        np.testing.assert_array_equal(values, second.slots[name])
    np.testing.assert_equal(first.run, second.run)
    assert {"never drawn", "median time to first draw"} == first.forecasts
    frame = first.frame()
    assert list(frame.index) == list(first.methods) and len(frame) == 4
    assert first.table().count("\n") == len(frame) + 1


def test_ages_in_updates():
    replay, state = filled(uniform.sampler(), np.zeros(20), capacity=10)
    # Updates 9 now and 4 at the write of the oldest, after step 11 of 20.
    schedule = Schedule(updates=1, learn_every=2, warmup=2)
    seen = look(replay, state, schedule=schedule)
    assert seen.run["age of the oldest policy"] == 9 - 4
    assert seen.run["replay volume"] == 2 / 2


def test_methods_that_other_replays_do_not_determine():
    replay, state = filled(per.sampler(), np.linspace(-1, 1, 8))
    names = ["masked", "sequences", "her", "ners", "relo", "discor", "ere"]
    seen = look(replay, state, names)
    for name in names:
        assert seen.methods[name]["basis"].startswith("not comparable: ")
        assert f"P {name}" not in seen.slots
    assert "reducible_loss" in seen.methods["relo"]["basis"]
    cold = look(replay, state, ["rank"], warm="none")
    assert "warm" in cold.methods["rank"]["basis"]
    assert f"P run{STORED}" in cold.slots and "P uniform" in cold.slots


def test_the_own_method_may_share_its_sampler_with_others():
    replay, state = filled(uniform.sampler(), np.linspace(-1, 1, 8))
    seen = look(replay, state, ["discor", "pal"], own="discor")
    assert f"discor{STORED}" in seen.methods and "discor" not in seen.methods
    assert np.isnan(seen.methods[f"discor{STORED}"]["noise"])  # its weights are those of the agent
    assert seen.methods["pal"]["TV to run"] == 0
    with refused("own", "per"):
        look(replay, state, ["per"], own="per")


def test_bad_states_and_arguments():
    replay, state = filled(per.sampler(), np.ones(4))
    with refused("empty"):
        look(replay, replay.init(KEY, EXAMPLE))
    with refused("vmapped"):
        look(replay, jax.tree.map(lambda x: jnp.stack([x, x]), state))
    negative = state.ring.replace(steps_added=jnp.asarray(-1))
    with refused("steps_added"):
        look(replay, state._replace(ring=negative))
    tree = state.sampler.tree
    broken = state.sampler._replace(tree=tree.replace(nodes=tree.nodes * 3))
    with refused("damaged"):
        look(replay, state._replace(sampler=broken))
    with refused("ReplayState"):
        look(replay, state.ring)
    both = mixing.mix(replay, replay, 0.5, 2, read_only=True)
    with refused("Mixed"):
        look(both, state)
    with refused("methods", "perr"):
        look(replay, state, ["perr"])
    with refused("td_error"):
        look(replay, state, feedback=lambda t: {"value": t.reward})
    with refused("not finite"):
        look(replay, state, feedback=lambda t: {"td_error": t.reward / 0})
    with refused("warm", "cold"):
        look(replay, state, warm="cold")
    with refused("gradients", 0):
        look(replay, state, gradients=0)
    with refused("draws", "[4]"):
        look(replay, state, counts=Counts(np.zeros(3), np.zeros(3)))
    assert IGNORED not in look(replay, state).slots["slot"]
