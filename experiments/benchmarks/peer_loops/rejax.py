"""rejax (by keraJLi): DQN, TD3 and SAC, from a checkout or as installed.

Its replay draws a batch without replacement, by ordering random numbers of all slots; a second
variant draws slots with replacement, and changes nothing else. Evaluations are left out of what is
timed, and in what is compiled for its time they play one episode, as ours do.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks.peer_loops import Missing, Setting, SingleDone, Train, Variant
from experiments.benchmarks.peer_loops.versions import version_of
from experiments.installation.commands import install_package

PUBLISHED, WITH_REPLACEMENT = "rejax", "rejax, O(1)"


def version(folder: Path | None) -> str:
    """Return the version that is used."""
    return version_of("rejax", folder)


def variants(folder: Path | None, setting: Setting) -> Mapping[str, Variant]:
    """Return the loops as published and with another way to draw."""
    if folder is not None and not (folder / "rejax" / "__init__.py").is_file():
        raise Missing(f"{folder} has no rejax/__init__.py: give a checkout of keraJLi/rejax")
    if folder is None and importlib.util.find_spec("rejax") is None:
        raise Missing("not installed: give a checkout of keraJLi/rejax with --rejax")
    if importlib.util.find_spec("distrax") is None:
        raise Missing(f"it needs distrax: {install_package('distrax')}")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    algorithm = importlib.import_module("rejax").get_algo(setting.agent)
    kinds = {PUBLISHED: algorithm, WITH_REPLACEMENT: _with_replacement(algorithm)}
    return {
        name: Variant(
            functools.partial(_train, kind, setting, False),
            functools.partial(_train, kind, setting, True),
        )
        for name, kind in kinds.items()
    }


def _with_replacement(algorithm: Any) -> Any:
    """Return an algorithm whose replay draws each slot on its own."""
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
            return {
                "replay_buffer": Buffer.empty(self.buffer_size, self.obs_space, self.action_space)
            }

    return Algorithm


def _train(kind: Any, setting: Setting, evaluates: bool, steps: int, before: int) -> Train:
    """Return a run of `steps` steps, none of the first `before` of which learns."""
    import gymnax

    evaluate = importlib.import_module("rejax.evaluate").evaluate
    env, params = gymnax.make(setting.env)
    env = SingleDone(env)
    relu = {"activation": "relu"}
    networks: dict[str, Any] = {
        "dqn": {"agent_kwargs": dict(relu), "ddqn": False},
        "td3": {"actor_kwargs": dict(relu), "critic_kwargs": dict(relu)},
        "sac": {"agent_kwargs": dict(relu), "hidden_layer_sizes": setting.hidden},
    }[setting.agent]
    made = kind.create(
        env=env,
        env_params=params,
        num_envs=1,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        fill_buffer=before,
        buffer_size=setting.capacity,
        batch_size=setting.batch_size,
        learning_rate=setting.learning_rate,
        gamma=0.99,
        polyak=1 - setting.tau,
        target_update_freq=1,
        **networks,
    )
    sizes = {
        name: getattr(made, name).clone(hidden_layer_sizes=setting.hidden)
        for name in ("agent", "actor", "critic")
        if hasattr(made, name)
    }

    def one_episode(algorithm: Any, state: Any, key: Any) -> Any:
        act, limit = algorithm.make_act(state), params.max_steps_in_episode
        return evaluate(act, key, env, params, 1, limit)

    def nothing(algorithm: Any, state: Any, key: Any) -> tuple[()]:
        del algorithm, state, key
        return ()

    return made.replace(eval_callback=one_episode if evaluates else nothing, **sizes).train
