"""DQN in one file, everything jitted, seeds vmapped, with prioritised replay from jaxreplay.

In the manner of PureJaxRL: `make_train(config)` returns a function of a key, in which one scan goes
over the updates. The lines that a replay takes are marked with (1) to (6).

    python docs/examples/dqn_in_one_file.py
"""

import time
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxreplay import Replay, Transition, n_step
from jaxreplay.methods import per

CONFIG = {
    "env": "CartPole-v1", "num_envs": 4, "steps": 70_000, "seeds": 4, "warmup": 1_000,
    "capacity": 70_000, "batch_size": 128, "learning_rate": 1e-3, "gamma": 0.997, "n_step": 3,
    "target_rate": 0.01, "epsilon": 0.05, "epsilon_updates": 3_000, "episodes": 10,
}  # fmt: skip


class Play(NamedTuple):
    """The environments between two steps."""

    env_state: Any
    obs: jax.Array  # [E, ...]
    first: jax.Array  # [E] whether an episode starts
    window: n_step.Window


class Carry(NamedTuple):
    """What goes from update to update."""

    params: Any
    target: Any
    opt_state: Any
    replay: Any
    play: Play


def make_train(config: dict[str, Any]) -> Any:
    """Make `train(key) -> greedy returns [episodes]`, those of the final policy."""
    env, env_params = gymnax.make(config["env"])
    num_envs, updates = config["num_envs"], config["steps"] // config["num_envs"]
    actions = env.action_space(env_params).n
    reset = jax.vmap(env.reset, in_axes=(0, None))
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    network = nn.Sequential([nn.Dense(128), nn.relu, nn.Dense(128), nn.relu, nn.Dense(actions)])
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(config["learning_rate"]))
    epsilon = optax.linear_schedule(1.0, config["epsilon"], config["epsilon_updates"])
    sampler = per.sampler(per.PERConfig().for_run(updates))  # (1) another method: another line
    sizes = {name: config[name] for name in ("capacity", "batch_size", "num_envs")}
    replay = Replay(sampler, **sizes)

    def interact(
        play: Play, params: Any, number: jax.Array | int, key: jax.Array
    ) -> tuple[Play, Transition]:
        key_explore, key_action, key_step = jax.random.split(key, 3)
        explores = jax.random.uniform(key_explore, (num_envs,)) < epsilon(number)
        at_random = jax.random.randint(key_action, (num_envs,), 0, actions)
        action = jnp.where(explores, at_random, network.apply(params, play.obs).argmax(axis=1))
        keys = jax.random.split(key_step, num_envs)
        obs, env_state, reward, terminated, truncated, info = step(
            keys, play.env_state, action, env_params
        )
        # `obs` is the first of the next episode where one has ended; the replay needs the last one.
        # `push` sets the discount to 0 where an episode terminated, not where it was truncated.
        last = info["final_observation"]
        taken = n_step.Step(play.obs, action, reward, terminated, truncated, last, play.first)
        window, transition = n_step.push(play.window, taken, config["gamma"])
        return Play(env_state, obs, terminated | truncated, window), transition

    def update(carry: Carry, given: tuple[jax.Array, jax.Array]) -> tuple[Carry, None]:
        number, key = given
        key_interact, key_sample = jax.random.split(key)
        play, transition = interact(carry.play, carry.params, number, key_interact)
        held = replay.add(carry.replay, transition)  # (2) one transition of each environment
        batch = replay.sample(held, key_sample)  # (3) a batch, read only
        t = batch.transition

        def loss(params: Any) -> tuple[jax.Array, jax.Array]:
            best = network.apply(params, t.next_obs).argmax(axis=1)  # double Q-learning
            value = network.apply(carry.target, t.next_obs)[jnp.arange(len(best)), best]
            q = network.apply(params, t.obs)[jnp.arange(len(best)), t.action]
            td = jax.lax.stop_gradient(t.reward + t.discount * value) - q
            return (batch.weights * optax.huber_loss(td)).mean(), td  # (4) importance weights

        grads, td = jax.grad(loss, has_aux=True)(carry.params)
        steps, opt_state = optimiser.update(grads, carry.opt_state)
        params = optax.apply_updates(carry.params, steps)
        target = optax.incremental_update(params, carry.target, config["target_rate"])
        held = replay.update(held, batch, td_error=td)  # (5) priorities
        return Carry(params, target, opt_state, held, play), None

    def evaluate(params: Any, key: jax.Array) -> jax.Array:
        def advance(carry: Any, keys: jax.Array) -> Any:
            obs, env_state, running, total = carry
            action = network.apply(params, obs).argmax(axis=1)
            obs, env_state, reward, ended, cut, _ = step(keys, env_state, action, env_params)
            return (obs, env_state, running & ~(ended | cut), total + running * reward), None

        keys = jax.random.split(key, (1 + env_params.max_steps_in_episode, config["episodes"]))
        start = (*reset(keys[0], env_params), jnp.ones(len(keys[0]), bool), jnp.zeros(len(keys[0])))
        return jax.lax.scan(advance, start, keys[1:])[0][-1]

    def train(key: jax.Array) -> jax.Array:
        key_params, key_env, key_replay, key_warmup, key_run, key_test = jax.random.split(key, 6)
        obs, env_state = reset(jax.random.split(key_env, num_envs), env_params)
        params = network.init(key_params, obs)
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        taken = n_step.Step(obs[0], jnp.int32(0), jnp.float32(0), no, no, obs[0], yes)
        window = n_step.init(taken, config["n_step"], num_envs)
        play = Play(env_state, obs, jnp.ones(num_envs, bool), window)
        keys = jax.random.split(key_warmup, config["warmup"] // num_envs)
        play, early = jax.lax.scan(lambda play, key: interact(play, params, 0, key), play, keys)
        held = replay.init(key_replay, jax.tree.map(lambda x: x[0, 0], early))
        complete = jax.tree.map(lambda x: x[config["n_step"] - 1 :], early)
        held = replay.add_rollout(held, complete)  # (6) the warm-up; n steps make a transition
        carry = Carry(params, params, optimiser.init(params), held, play)
        keys = jax.random.split(key_run, updates)
        carry, _ = jax.lax.scan(update, carry, (jnp.arange(updates), keys))
        return evaluate(carry.params, key_test)

    return train


if __name__ == "__main__":
    start = time.perf_counter()
    keys = jax.random.split(jax.random.key(0), CONFIG["seeds"])
    returns = jax.jit(jax.vmap(make_train(CONFIG)))(keys)  # [seeds, episodes]
    print("final greedy return of each seed:", returns.mean(axis=1))
    print(f"{time.perf_counter() - start:.0f} seconds")
