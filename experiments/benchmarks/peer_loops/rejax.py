"""rejax (keraJLi): DQN, TD3 and SAC.

Its replay draws batches without replacement, by sorting a random number per slot; a second variant
draws slots with replacement instead. Evaluation is excluded from step times and included, with one
episode as in ours, in compile times.
"""

import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks.peer_loops import FILES, SingleDone, Train, Variant
from experiments.runs.run_config import RunConfig


def variants(folder: Path, config: RunConfig) -> Mapping[str, Variant]:
    """Return the loops with the published draws and with draws with replacement."""
    path = str((folder / FILES["rejax"]).parents[1])
    if path not in sys.path:
        sys.path.insert(0, path)
    algorithm = importlib.import_module("rejax").get_algo(config.agent)
    kinds = {"rejax": algorithm, "rejax, O(1)": _with_replacement(algorithm)}
    trains = {name: functools.partial(_train, kind, config) for name, kind in kinds.items()}
    return {
        name: Variant(functools.partial(train, False), functools.partial(train, True))
        for name, train in trains.items()
    }


def _with_replacement(algorithm: Any) -> Any:
    """Return an algorithm whose replay draws slots independently."""
    buffers = importlib.import_module("rejax.buffers")
    register_init = importlib.import_module("rejax.algos.algorithm").register_init

    class Buffer(buffers.ReplayBuffer):
        def sample(self, num: int, rng: Any) -> Any:
            slots = jax.random.randint(rng, (num,), 0, self.num_entries)
            return jax.tree.map(lambda column: column[slots], self.data)

    class Algorithm(algorithm):
        @register_init
        def initialize_replay_buffer(self, rng: Any) -> dict[str, Any]:
            del rng
            empty = Buffer.empty(self.buffer_size, self.obs_space, self.action_space)
            return {"replay_buffer": empty}

    return Algorithm


def _train(kind: Any, config: RunConfig, evaluates: bool, steps: int, before: int) -> Train:
    """Return a run of `steps` steps, of which the first `before` do not learn."""
    import gymnax

    evaluate = importlib.import_module("rejax.evaluate").evaluate
    env, params = gymnax.make(config.env.removeprefix("gymnax/"))
    options, sizes = config.agent_options, config.sizes
    rate = getattr(options, "learning_rate", None) or options.critic_learning_rate
    env = SingleDone(env)
    relu = {"activation": "relu"}
    networks: dict[str, Any] = {
        "dqn": {"agent_kwargs": dict(relu), "ddqn": False},
        "td3": {"actor_kwargs": dict(relu), "critic_kwargs": dict(relu)},
        "sac": {"agent_kwargs": dict(relu), "hidden_layer_sizes": options.hidden},
    }[config.agent]
    created = kind.create(
        env=env, env_params=params, num_envs=1, total_timesteps=steps, gamma=0.99,
        eval_freq=steps, skip_initial_evaluation=True, fill_buffer=before,
        buffer_size=sizes.capacity, batch_size=sizes.batch_size, learning_rate=rate,
        polyak=1 - options.tau, target_update_freq=1, **networks,
    )  # fmt: skip
    networks = {
        name: getattr(created, name).clone(hidden_layer_sizes=options.hidden)
        for name in ("agent", "actor", "critic")
        if hasattr(created, name)
    }

    def one_episode(algorithm: Any, state: Any, key: Any) -> Any:
        act, limit = algorithm.make_act(state), params.max_steps_in_episode
        return evaluate(act, key, env, params, 1, limit)

    def no_evaluation(algorithm: Any, state: Any, key: Any) -> tuple[()]:
        del algorithm, state, key
        return ()

    return created.replace(
        eval_callback=one_episode if evaluates else no_evaluation, **networks
    ).train
