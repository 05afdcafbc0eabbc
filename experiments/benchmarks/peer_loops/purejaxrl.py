"""purejaxrl (by luchris429): its DQN around flashbax's uniform buffer, from a checkout.

As published, all its keys but those of the first reset come from one constant, so that seeds share
them: every seed draws the same slots and the same random actions, and a key is hashed once for all.
A variant gives each seed keys of its own. In another, our uniform replay takes the buffer's place.
It has no PER: its learning phase does not return the buffer.
"""

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.benchmarks.peer_loops import Missing, Setting, SingleDone, Train, Variant
from experiments.benchmarks.peer_loops.versions import version_of
from experiments.installation.commands import install
from jaxreplay import Replay
from jaxreplay.methods import uniform
from jaxreplay.types import Array, Transition

PUBLISHED, OWN_KEYS, OUR_UNIFORM = (
    "purejaxrl",
    "purejaxrl, keys per seed",
    "purejaxrl, our uniform",
)


def version(folder: Path | None) -> str:
    """Return the version that is used."""
    return version_of("purejaxrl", folder)


def variants(folder: Path | None, setting: Setting) -> Mapping[str, Variant]:
    """Return the loops as published, with a seed's own keys, and with our replay."""
    if setting.agent != "dqn":
        return {}
    if folder is None:
        raise Missing("give a checkout of luchris429/purejaxrl with --purejaxrl")
    path = folder / "purejaxrl" / "dqn.py"
    if not path.is_file():
        raise Missing(f"{folder} has no purejaxrl/dqn.py: give a checkout of luchris429/purejaxrl")
    if importlib.util.find_spec("flashbax") is None:
        raise Missing(f"it needs flashbax: {install('bench')}")
    module = _load(path)
    train = functools.partial(_train, module, setting)
    return {
        PUBLISHED: Variant(functools.partial(train, False, False)),
        OWN_KEYS: Variant(functools.partial(train, True, False), several=True),
        OUR_UNIFORM: Variant(functools.partial(train, True, True)),
    }


def _load(path: Path) -> Any:
    """Import the file; wandb, which it reports to only when asked, need not be there."""
    spec = importlib.util.spec_from_file_location("purejaxrl_dqn", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    absent = importlib.util.find_spec("wandb") is None
    if absent:
        sys.modules["wandb"] = types.ModuleType("wandb")
    try:
        spec.loader.exec_module(module)
    finally:
        if absent:
            del sys.modules["wandb"]
    return module


def _train(
    module: Any, setting: Setting, own_keys: bool, our_replay: bool, steps: int, before: int
) -> Train:
    """Return a run of `steps` steps, none of the first `before` of which learns."""
    config = {
        "NUM_ENVS": 1,
        "BUFFER_SIZE": setting.capacity,
        "BUFFER_BATCH_SIZE": setting.batch_size,
        "TOTAL_TIMESTEPS": steps,
        "EPSILON_START": 1.0,
        "EPSILON_FINISH": 0.05,
        "EPSILON_ANNEAL_TIME": 10_000,
        "TARGET_UPDATE_INTERVAL": 1,
        "LR": setting.learning_rate,
        "LEARNING_STARTS": before,
        "TRAINING_INTERVAL": 1,
        "GAMMA": 0.99,
        "TAU": setting.tau,
        "ENV_NAME": setting.env,
    }
    changed = {
        "QNetwork": functools.partial(_QNetwork, setting.hidden),
        "LogWrapper": lambda env, wrap=module.LogWrapper: SingleDone(wrap(env)),
    }
    if our_replay:
        changed["fbx"] = types.SimpleNamespace(make_flat_buffer=_make_buffer)

    def train(key: Array) -> Any:
        made = lambda seed: jax.random.fold_in(key, seed)  # noqa: E731
        more = {"PRNGKey": made} if own_keys else {}
        random = _With(jax.random, **more)
        with _replaced(module, jax=_With(jax, tree_map=jax.tree.map, random=random), **changed):
            return module.make_train(config)(key)

    return train


class _QNetwork(nn.Module):
    """The network, whose layers are no option of theirs."""

    hidden: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(self.action_dim)(x)


class _With:
    """A module with some names more, or other ones, while another module uses it."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def _replaced(module: Any, **names: Any) -> Iterator[None]:
    """Let names of a module mean something else while it is traced."""
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class _Step(NamedTuple):
    obs: Array
    action: Array
    reward: Array
    done: Array


class _Pair(NamedTuple):
    first: _Step
    second: _Step


class _Drawn(NamedTuple):
    experience: _Pair


class _Buffer(NamedTuple):
    """The functions of flashbax's buffers that the loop uses."""

    init: Callable[..., Any]
    add: Callable[..., Any]
    sample: Callable[..., Any]
    can_sample: Callable[..., Any]

    def replace(self, **functions: Any) -> "_Buffer":
        return self._replace(**functions)


def _make_buffer(max_length: int, sample_batch_size: int, **others: Any) -> _Buffer:
    """Put our uniform replay behind flashbax's functions.

    Its loop adds a step before it knows the next observation, so a step waits here until the next
    one comes; the first row is made up. Its loop adds before it samples, so that nothing is copied
    although it never calls `update`.
    """
    del others
    replay = Replay(uniform.sampler(), capacity=max_length, batch_size=sample_batch_size)
    no = jnp.zeros(1, bool)

    def row(step: _Step, next_obs: Array) -> Transition:
        kept = 1.0 - step.done.astype(jnp.float32)
        return Transition(step.obs, step.action, step.reward, kept, next_obs, no, no)

    def alike(step: Any) -> _Step:
        return _Step(step.obs, step.action, step.reward, jnp.asarray(step.done, bool))

    def init(step: Any) -> Any:
        held = jax.tree.map(lambda x: jnp.asarray(x)[None], alike(step))
        example = jax.tree.map(lambda x: x[0], row(held, held.obs))
        return replay.init(jax.random.key(0), example), held

    def add(state: Any, step: Any) -> Any:
        inner, held = state
        return replay.add(inner, row(held, step.obs)), alike(step)

    def sample(state: Any, key: Array) -> _Drawn:
        t = replay.sample(state[0], key).transition
        first = _Step(t.obs, t.action, t.reward, t.discount == 0)
        return _Drawn(_Pair(first, first._replace(obs=t.next_obs)))

    return _Buffer(init, add, sample, lambda state: replay.can_sample(state[0]))
