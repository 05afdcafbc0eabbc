"""Settings that share a compiled program, and equality with single runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runs.assembly import assemble
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


def test_settings_as_inputs_equal_single_runs(grouped):
    both, _, metrics = same_as_alone(grouped[0])
    # Other settings are a different run.
    assert not np.allclose(*metrics["replay/mean_priority"], rtol=1e-3)
    assert not np.allclose(*metrics["replay/beta"], rtol=1e-3)
    # Clocks are shared by all settings, so that conditions on them remain branches.
    assert both.axes[1].rows is None and both.axes[1].updates is None


def same_as_alone(group):
    """Compare the first and last point of a group in their shared program with separate programs;
    return the shared program, its state and its metrics."""
    pair = (group.points[0], group.points[-1])
    both = over_seeds(group.program, group.example)
    state = both.init(group.inputs([(point, 1) for point in pair]))
    many = both.chunk.lower(state, jnp.asarray(1, jnp.int32)).compile()
    text = many.as_text()
    assert not [word for word in ("all-reduce", "all-gather", "collective") if word in text]
    metrics = []
    for blocks in (1, 4):
        state, own = many(state, jnp.asarray(blocks, jnp.int32))
        metrics.append(own)
    for run in (0, 1):
        (single,) = programs.grouped([pair[run]])
        alone = over_seeds(single.program)
        own_state = alone.init(single.inputs([(pair[run], 1)]))
        for blocks, ours in zip((1, 4), metrics):
            own_state, expected = alone.chunk(own_state, jnp.asarray(blocks, jnp.int32))
            for name, value in expected.items():
                np.testing.assert_allclose(
                    ours[name][run : run + 1], value, rtol=2e-6, atol=1e-7, err_msg=name
                )
        replay, key = assemble(pair[run].config).replay, jax.random.key(7)
        drawn = [
            jax.jit(jax.vmap(lambda each: replay.sample(each, key).indices, (axes,)))(each)
            for each, axes in (
                (state[1].replay, both.axes[1].replay),
                (own_state.replay, alone.axes.replay),
            )
        ]
        np.testing.assert_array_equal(drawn[0][run : run + 1], drawn[1])
    return both, state, metrics[-1]


def test_points_added_later_reuse_programs():
    program_cache = programs.ProgramCache()
    first, *others = points("replay.alpha=0.2,0.4,0.6", "replay.clip=none,1", "replay.beta=0,1")
    (one,) = program_cache.grouped([first])
    assert [place.field for place in one.traced] == ["alpha", "beta"]  # although no value varies
    without, with_ = program_cache.grouped(others)
    assert without.program is one.program and len(without.points) == 5
    assert [place.field for place in with_.traced] == ["alpha", "clip", "beta"]
    assert program_cache.grouped(others)[1].program is with_.program
    hidden = program_cache.grouped(points("agent.learning_rate=1e-3", "n_step=1,2"))
    assert named(hidden) == [(["agent.learning_rate"], 1)] * 2  # n_step changes lengths
