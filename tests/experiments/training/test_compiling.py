"""Functions that are traced once, axes of seeds, and compile options of rare programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from agents.dqn import DQNConfig, dqn
from experiments import environments
from experiments.training import compiling
from experiments.training.compiling import Traced
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import axes_of, over_seeds
from jaxreplay import Replay
from jaxreplay.methods import uniform
from tests.xla import HAS_OLD_FUSIONS

ONE = jnp.ones(())


def test_a_leaf_that_depends_on_no_seed_has_no_axis():
    """Dependence passes through loops and branches, and from one leaf to another at each step."""

    def step(state, key):
        first, second, third, count, choice, noise = state
        count = jax.lax.fori_loop(0, 3, lambda _, n: n + 1, count)
        choice = jax.lax.cond(count > 4, lambda: 2 * choice, lambda: choice)
        return third, first, second, count, choice, noise + jax.random.uniform(key)

    def init(key):
        return jax.random.uniform(key), ONE, ONE, jnp.int32(0), ONE, ONE

    assert axes_of(init, step, jax.random.key(0)) == (0, 0, 0, None, None, 0)
    assert axes_of(lambda key: (ONE,) * 3, lambda s, key: s, jax.random.key(0)) == (None,) * 3


def test_a_traced_function_gives_the_same_and_runs_its_python_once():
    calls = []

    def function(x, tree):
        calls.append(1)
        return {"sum": x + tree["y"], "z": tree["z"] * 2}

    tree = {"y": jnp.arange(3.0), "z": jnp.ones(2, jnp.int32)}
    traced = Traced(function, ONE, tree)
    for result in (traced(ONE, tree), jax.jit(traced)(ONE, tree)):
        assert result["sum"].tolist() == [1, 2, 3] and result["z"].tolist() == [2, 2]
    assert len(calls) == 1


def test_a_rare_program_has_the_option_where_xla_has_it():
    double = compiling.jit_once(lambda x: 2 * x, donate_argnums=0)
    given = jnp.arange(3.0)
    assert double(given).tolist() == [0, 2, 4] and given.is_deleted()
    on_cpu = jax.default_backend() == "cpu"
    assert bool(compiling._options()) == (HAS_OLD_FUSIONS and on_cpu)


def test_options_reach_xla_and_the_warm_up_has_them(monkeypatch):
    monkeypatch.setattr(compiling, "_options", lambda: {"xla_of_another_version": True})
    with pytest.raises(JaxRuntimeError, match="No such compile option"):
        compiling.jit_once(lambda x: 2 * x)(1.0)
    environment = environments.make("gymnax/CartPole-v1")
    method = uniform.method()
    agent = dqn(DQNConfig(hidden=(4,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=4)
    program = make_program(
        environment, agent, replay, LoopConfig(steps=40, warmup=20, eval_every=20)
    )
    with pytest.raises(JaxRuntimeError, match="No such compile option"):
        over_seeds(program).init.lower(jax.random.split(jax.random.key(0), 2)).compile()
