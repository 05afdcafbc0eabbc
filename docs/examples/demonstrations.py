"""Demonstrations in every batch (RLPD, Ball et al. 2023), where exploration finds no reward.

`python -m experiments.study docs/examples/demonstrations.py --out runs/demos` records 20 episodes
of a scripted policy, and compares DQN with and without them, seed by seed, until it is decided.
"""

import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments import environments
from experiments.statistics.claims import Claim
from experiments.studies.definition import Study
from experiments.studies.options import Question, StudyOptions
from jaxreplay import Replay, datasets, save
from jaxreplay.methods import uniform

ENV, FILE = "gymnax/MountainCar-v0", Path("demonstrations.safetensors")
N_STEP = 5  # of the returns in the file and in the runs


def play(key):
    """Return one episode of pushing along the velocity, in the format of Minari."""
    env = environments.make(ENV, sparse=True)

    def step(carry, key):
        state, obs = carry
        action = jnp.where(obs[1] < 0, 0, 2)
        state, next_obs, out = env.step(key, state, action)
        return (state, next_obs), (obs, action, out)

    keys = jax.random.split(key, env.max_steps)
    obs, actions, out = jax.lax.scan(step, env.reset(key), keys)[1]
    length = int(np.argmax(out.terminated | out.truncated)) + 1
    last = out.final_obs[length - 1]
    return types.SimpleNamespace(
        observations=np.concatenate([obs[:length], last[None]]),
        actions=np.asarray(actions[:length]),
        rewards=np.asarray(out.reward[:length]),
        terminations=np.asarray(out.terminated[:length]),
        truncations=np.asarray(out.truncated[:length]),
    )


def record(path, episodes=20):
    """Write the transitions of some episodes to a file."""
    played = [play(key) for key in jax.random.split(jax.random.key(0), episodes)]
    size = sum(len(episode.actions) for episode in played)
    replay = Replay(uniform.sampler(), capacity=size, batch_size=1)
    filled = datasets.fill(replay, played, key=jax.random.key(0), gamma=0.99, n_step=N_STEP)
    return save(replay, filled.state, path)


if not FILE.exists():
    record(FILE)
WITH, WITHOUT = f"demos={FILE}", "demos=none"
study = Study.make(
    ENV,
    "dqn",
    ["uniform", "per"],
    seeds="until decided",
    loop={"steps": 20_000, "n_step": N_STEP},
    env_options={"sparse": True},
    grid={"demos": ["none", str(FILE)]},  # half of each batch; see `demos_share`
    question=Question(primary="auc", control=False),
    options=StudyOptions(threshold=1.0, report=False),
    claims=[  # `across`: the arms may differ in more than their method
        Claim("faster with them", f"uniform {WITH}", f"uniform {WITHOUT}", across=True),
        Claim("PER is faster with them", f"per {WITH}", f"per {WITHOUT}", across=True),
        Claim("PER is faster than uniform replay", f"per {WITH}", f"uniform {WITH}"),
    ],
)
