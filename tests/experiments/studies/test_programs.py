"""Settings that share a compiled program, and equality with single runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runs.run_config import defaults
from experiments.studies import grid, programs
from experiments.training.seeds import over_seeds


def tiny(replay="per", **sizes):
    config = defaults("walk/4", "dqn", replay)
    return dataclasses.replace(
        config,
        seeds=2,
        loop=dataclasses.replace(
            config.loop, steps=200, warmup=100, eval_every=50, eval_episodes=1, n_step=1, inspect=0
        ),
        sizes=dataclasses.replace(config.sizes, batch_size=8, **sizes),
        agent_options=dataclasses.replace(config.agent_options, hidden=(8,)),
    )


def points(*texts, replays=("per",)):
    bases = {("walk/4", replay): tiny(replay) for replay in replays}
    return grid.expand([grid.read_axis(text) for text in texts], bases)


def named(groups):
    return [([place.name for place in group.traced], len(group.points)) for group in groups]


@pytest.fixture(scope="module")
def grouped():
    """Return groups of PER over settings that can and cannot be traced."""
    # Some first values turn a feature off, which a separate program would leave out.
    axes = (
        "replay.alpha=0.2,0.6", "replay.beta_updates=30,90", "agent.max_grad_norm=0,0.01",
        "eval_epsilon=0,0.7", "agent.epsilon_updates=20,2000", "replay.sampling=stratified,iid",
    )  # fmt: skip
    return programs.grouped(points(*axes))


def test_traced_settings_are_inputs_and_others_compile_separately(grouped):
    assert [len(group.traced) for group in grouped] == [5, 5]
    assert [len(group.points) for group in grouped] == [32, 32]
    apart = [group.points[0].config.replay_options.sampling for group in grouped]
    assert apart == ["stratified", "iid"]
    assert grouped[1].name == "walk/4 per replay.sampling=iid"


def test_lengths_sizes_and_none_compile_separately():
    assert named(programs.grouped(points("n_step=1,2", "batch_size=8,16"))) == [([], 1)] * 4
    assert named(programs.grouped(points("replay.beta_updates=none,50"))) == [([], 1)] * 2
    assert named(programs.grouped(points("replay.alpha=0.3"))) == [([], 1)]


def test_methods_without_a_setting_have_separate_programs():
    groups = programs.grouped(points("replay.beta_end=1", replays=("uniform", "per")))
    assert [group.points[0].label for group in groups] == ["uniform", "per"]


def test_settings_as_inputs_equal_a_single_run(grouped):
    """The first point of the group, whose values turn features off, equals its own program."""
    group = grouped[0]
    pair = (group.points[0], group.points[-1])
    shared = over_seeds(group.program, programs.example(pair[0].config, group.traced))
    state = shared.init(group.inputs([(point, 1) for point in pair]))
    many = shared.chunk.lower(state, jnp.int32(1)).compile()
    text = many.as_text()
    assert not [word for word in ("all-reduce", "all-gather", "collective") if word in text]
    (single,) = programs.grouped(pair[:1])
    alone = over_seeds(single.program)
    own_state = alone.init(single.inputs([(pair[0], 1)]))
    for blocks in (1, 4):
        state, metrics = many(state, jnp.int32(blocks))
        own_state, expected = alone.chunk(own_state, jnp.int32(blocks))
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][:1], value, rtol=2e-6, atol=1e-7, err_msg=name)
    # Later draws are the same, too.
    for leaf, own in zip(jax.tree.leaves(state[1].replay), jax.tree.leaves(own_state.replay)):
        np.testing.assert_allclose(leaf[: len(own)] if own.ndim else leaf, own, rtol=2e-6)
    # Other settings are a different run.
    assert not np.allclose(*metrics["replay/mean_priority"], rtol=1e-3)
    assert not np.allclose(*metrics["replay/beta"], rtol=1e-3)
    # Clocks are shared by all settings, so that conditions on them remain branches.
    assert shared.axes[1].rows is None and shared.axes[1].updates is None
