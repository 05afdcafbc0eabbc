"""What runs once is compiled by an option of XLA where it has it, and without it elsewhere."""

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from agents.dqn import DQNConfig, dqn
from experiments import environments
from experiments.training import once
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Replay
from jaxreplay.methods import uniform
from tests.xla import HAS_OLD_FUSIONS


@pytest.fixture
def asked_anew():
    once._options.cache_clear()
    yield
    once._options.cache_clear()


def test_the_option_is_used_where_xla_has_it(asked_anew):
    assert once._options() == (once._OPTIONS if HAS_OLD_FUSIONS else {})


def test_an_xla_without_the_option_compiles_without_it(asked_anew, monkeypatch):
    monkeypatch.setattr(once, "_OPTIONS", {"xla_of_another_version": True})
    double = once.jit_once(lambda x: 2 * x, donate_argnums=0)
    given = jnp.arange(3.0)
    assert double(given).tolist() == [0, 2, 4] and given.is_deleted()


def test_options_reach_xla_and_the_warm_up_has_them(monkeypatch):
    monkeypatch.setattr(once, "_options", lambda: {"xla_of_another_version": True})
    with pytest.raises(JaxRuntimeError, match="No such compile option"):
        once.jit_once(lambda x: 2 * x)(1.0)
    environment = environments.make("gymnax/CartPole-v1")
    method = uniform.method()
    agent = dqn(DQNConfig(hidden=(4,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=4)
    program = make_program(
        environment, agent, replay, LoopConfig(steps=40, warmup=20, eval_every=20)
    )
    with pytest.raises(JaxRuntimeError, match="No such compile option"):
        over_seeds(program).init.lower(jax.random.split(jax.random.key(0), 2)).compile()
