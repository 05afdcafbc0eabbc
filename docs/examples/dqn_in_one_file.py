"""DQN in one file, everything jitted, seeds vmapped, with prioritised replay from jaxreplay.

In the manner of PureJaxRL: `make_train(config)` returns a function of a key, in which one scan goes
over the updates. The lines that a replay takes are marked with (1) to (5).

    python docs/examples/dqn_in_one_file.py
"""

from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxreplay import Replay
from jaxreplay.methods import per

CONFIG = {
    "env": "CartPole-v1", "num_envs": 8, "steps": 100_000, "seeds": 4, "warmup": 1_000,
    "capacity": 102_400, "batch_size": 128, "learning_rate": 5e-4, "gamma": 0.99,
    "target_every": 100, "epsilon": 0.1,
}  # fmt: skip


class Carry(NamedTuple):
    """What goes from update to update."""

    params: Any
    target: Any
    opt_state: Any
    replay: Any
    env_state: Any
    obs: jax.Array  # [E, ...]
    returned: jax.Array  # [E] return of the running episode
    latest: jax.Array  # [E] return of the latest whole one


def make_train(config: dict[str, Any]) -> Any:
    """Make `train(key) -> mean return [updates]` of the latest episode of every environment."""
    env, env_params = gymnax.make(config["env"])
    num_envs, updates = config["num_envs"], config["steps"] // config["num_envs"]
    actions = env.action_space(env_params).n
    network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(actions)])
    optimiser = optax.adam(optax.linear_schedule(config["learning_rate"], 0.0, updates))
    sampler = per.sampler(per.PERConfig().for_run(updates))  # (1) another method: another line
    sizes = {name: config[name] for name in ("capacity", "batch_size", "num_envs")}
    replay = Replay(sampler, **sizes)

    def interact(carry: Carry, key: jax.Array) -> tuple[Carry, jax.Array]:
        key_explore, key_action, key_step = jax.random.split(key, 3)
        explores = jax.random.uniform(key_explore, (num_envs,)) < config["epsilon"]
        at_random = jax.random.randint(key_action, (num_envs,), 0, actions)
        action = jnp.where(
            explores, at_random, network.apply(carry.params, carry.obs).argmax(axis=1)
        )
        obs, env_state, reward, terminated, truncated, info = jax.vmap(
            env.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(key_step, num_envs), carry.env_state, action, env_params)
        # (2) Any pytree is a row. The next observation is the last one of an episode, not the first
        # after the reset, and the discount is 0 where it terminated, not where it was truncated.
        row = {
            "obs": carry.obs, "action": action, "reward": reward,
            "next_obs": info["final_observation"],
            "discount": config["gamma"] * (1.0 - terminated),
        }  # fmt: skip
        held, returned = replay.add(carry.replay, row), carry.returned + reward
        over = terminated | truncated
        latest = jnp.where(over, returned, carry.latest)
        carry = carry._replace(replay=held, env_state=env_state, obs=obs, latest=latest)
        return carry._replace(returned=jnp.where(over, 0.0, returned)), latest.mean()

    def update(carry: Carry, given: tuple[jax.Array, jax.Array]) -> tuple[Carry, jax.Array]:
        number, key = given
        key_interact, key_sample = jax.random.split(key)
        carry, latest = interact(carry, key_interact)
        batch = replay.sample(carry.replay, key_sample)  # (3) a batch, read only
        t = batch.transition

        def loss(params: Any) -> tuple[jax.Array, jax.Array]:
            best = network.apply(carry.target, t["next_obs"]).max(axis=1)
            q = network.apply(params, t["obs"])[jnp.arange(len(best)), t["action"]]
            td = t["reward"] + t["discount"] * best - q
            return (batch.weights * optax.huber_loss(td)).mean(), td  # (4) importance weights

        grads, td = jax.grad(loss, has_aux=True)(carry.params)
        steps, opt_state = optimiser.update(grads, carry.opt_state)
        params = optax.apply_updates(carry.params, steps)
        target = optax.periodic_update(params, carry.target, number, config["target_every"])
        held = replay.update(carry.replay, batch, td_error=td)  # (5) priorities
        carry = carry._replace(params=params, target=target, opt_state=opt_state, replay=held)
        return carry, latest

    def train(key: jax.Array) -> jax.Array:
        key_params, key_env, key_replay, key_warmup, key_run = jax.random.split(key, 5)
        keys = jax.random.split(key_env, num_envs)
        obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
        params = network.init(key_params, obs)
        number = jnp.float32(0)
        example = {"obs": obs[0], "action": 0, "reward": number, "next_obs": obs[0]}
        held = replay.init(key_replay, example | {"discount": number})
        none, opt_state = jnp.zeros(num_envs), optimiser.init(params)
        carry = Carry(params, params, opt_state, held, env_state, obs, none, none)
        early = jax.random.split(key_warmup, config["warmup"] // num_envs)
        carry, _ = jax.lax.scan(interact, carry, early)
        keys = jax.random.split(key_run, updates)
        return jax.lax.scan(update, carry, (jnp.arange(updates), keys))[1]

    return train


if __name__ == "__main__":
    # The replay is made within the vmapped function: its clocks stay single, it writes in place.
    keys = jax.random.split(jax.random.key(0), CONFIG["seeds"])
    returns = jax.jit(jax.vmap(make_train(CONFIG)))(keys)
    for part in jnp.split(returns, 10, axis=1):
        print("mean return:", part.mean(axis=1).round(1))
