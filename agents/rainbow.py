"""Rainbow: DQN that learns distributions of returns, with noisy layers (Hessel et al. 2018).

Double, dueling and noisy are options here; multi-step returns and prioritised replay are what it
is shown, and belong to the loop and the replay. Without the distributions it is `agents.dqn`.
"""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common
from agents.networks import QNetwork, dense
from agents.noisy import draw, noisy, with_noise
from agents.options import QNetworkOptions
from agents.types import Agent, Discrete, Info
from jaxreplay import objectives, requirements
from jaxreplay.option import option, override
from jaxreplay.types import Array, Objective, Sample, Transition

Params = Any
_PAPER = "Hessel et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class RainbowConfig(QNetworkOptions):
    """Hyperparameters of Rainbow; the defaults suit small environments, such as CartPole.

    Random actions are taken only if it is not noisy. `experiments/runs/presets.py` holds the
    settings of the papers, for Atari.
    """

    dueling: bool = override(QNetworkOptions, "dueling", True, "Wang et al. 2016")
    adam_eps: float = override(QNetworkOptions, "adam_eps", 1.5e-4, _PAPER)
    target_every: int = override(QNetworkOptions, "target_every", 200)
    noisy: bool = option(
        True, "explore by noisy layers instead of random actions", "Fortunato et al. 2018"
    )
    sigma: float = option(
        0.1,
        "initial noise of noisy layers, times 1/sqrt(inputs); 0.5 is usual for Atari",
        above=0,
    )
    atoms: int = option(
        51, "returns that the distribution is over", "Bellemare et al. 2017", at_least=2
    )
    v_min: float = option(-10.0, "the least of them", "Bellemare et al. 2017")
    v_max: float = option(
        10.0,
        "the largest; targets beyond count as this (CartPole's returns reach 100)",
        "Bellemare et al. 2017",
    )

    def check(self) -> None:
        """Refuse a support that is empty."""
        if not self.v_min < self.v_max:
            raise ValueError(
                f"v_min is {self.v_min} and v_max {self.v_max}: give two numbers, v_min the lesser"
            )


class RainbowState(NamedTuple):
    """What Rainbow carries from update to update."""

    params: Params  # of the online network
    target_params: Params  # of the target network
    opt_state: optax.OptState
    updates: Array  # [] int32, the clock of epsilon and of the target network


def project(probability: Array, reward: Array, discount: Array, support: Array) -> Array:
    """Return one example's projected target distribution `[m]` (Bellemare et al. 2017, Eq. 7).

    Every atom z moves to `reward + discount * z`, clipped to the support's ends, and shares its
    probability among the two atoms around it, the nearer getting the more: each atom collects
    what a triangle of the width of two gaps, centred on it, weighs there. Where a moved atom falls
    on an atom, that one gets all of it.

    Args:
      probability: `[m]`, of the next state's return.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated: then all mass moves to the reward.
      support: `[m]`, the evenly spaced atoms in ascending order.
    """
    chex.assert_rank([probability, reward, discount, support], [1, 0, 0, 1])
    chex.assert_equal_shape([probability, support])
    gap = (support[-1] - support[0]) / (support.shape[0] - 1)
    moved = jnp.clip(reward + discount * support, support[0], support[-1])
    share = jnp.clip(1 - jnp.abs(moved[None, :] - support[:, None]) / gap, 0, 1)  # [m, m]
    return share @ probability


def cross_entropy(target: Array, logits: Array) -> Array:
    """Return the cross-entropy `[]` of a distribution `[m]`, given by logits, to a target `[m]`."""
    chex.assert_rank([target, logits], 1)
    return -jnp.dot(target, jax.nn.log_softmax(logits))


def rainbow(
    config: RainbowConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Make a Rainbow agent; `objective` weighs its cross-entropies (default: by the weights).

    Its feedback: `td_error` is the unweighted cross-entropy (never negative), which stands for the
    size of the TD error; `q_value` the mean of the taken action's distribution; `target` the mean
    of the projected target. Noisy layers draw anew for every step of each environment, and thrice
    in an update; `greedy` acts by the means of their weights.

    Raises:
      ValueError: the action space is not discrete, or the objective is a loss of scalar errors.
    """
    common.require(
        isinstance(action_space, Discrete),
        f"Rainbow needs discrete actions, not {action_space}: choose an agent for continuous "
        "actions",
    )
    objective = objective or objectives.weighted()
    common.require(
        objective.error is None,
        "Rainbow learns distributions and has no scalar TD error whose loss could be replaced: "
        "leave the loss to the agent (--replay.loss agent), or use another replay method",
    )
    requirements.refuse_density(objective, "Rainbow's policy has no density")
    layer = noisy(config.sigma) if config.noisy else dense
    network = QNetwork(
        action_space.n, config.network, config.hidden, config.dueling, config.atoms, layer
    )
    optimiser = common.clipped_adam(config.learning_rate, config.adam_eps, config.max_grad_norm)
    epsilon = config.epsilon()
    support = jnp.linspace(config.v_min, config.v_max, config.atoms)

    def noises(params: Params, key: Array, count: int) -> Any:
        """Return `count` noises for networks of such parameters, leaves `[count, ...]`, or None."""
        return draw(params, key, count) if config.noisy else None

    def one(many: Any, index: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], many)

    def logits(params: Params, obs: Array, noise: Any) -> Array:
        params = params if noise is None else with_noise(params, noise)
        return network.apply(params, obs)  # [B, n, m]

    def best(params: Params, obs: Array, noise: Any) -> Array:
        q = jax.nn.softmax(logits(params, obs, noise)) @ support
        return jnp.argmax(q, axis=-1).astype(jnp.int32)

    def init(key: Array, obs: Array, action: Array) -> RainbowState:
        del action
        params = network.init(key, obs[None])
        updates = jnp.zeros((), jnp.int32)
        return RainbowState(params, params, optimiser.init(params), updates)

    def greedy(state: RainbowState, obs: Array) -> Array:
        return best(state.params, obs, None)

    def act(
        state: RainbowState, obs: Array, key: Array, previous: Any = None
    ) -> tuple[Array, tuple[()]]:
        del previous
        if config.noisy:  # every environment explores by noise of its own
            many = noises(state.params, key, obs.shape[0])
            return jax.vmap(lambda o, noise: best(state.params, o[None], noise)[0])(obs, many), ()
        chance = epsilon(state.updates)
        return common.epsilon_greedy(greedy(state, obs), key, chance, action_space.n), ()

    def targets(state: RainbowState, t: Transition, select: Any, evaluate: Any) -> Array:
        next_logits = logits(state.target_params, t.next_obs, evaluate)
        if config.double:
            action = best(state.params, t.next_obs, select)
        else:
            action = jnp.argmax(jax.nn.softmax(next_logits) @ support, axis=-1)
        chosen = jnp.take_along_axis(next_logits, action[:, None, None], axis=1)[:, 0]
        return jax.vmap(project, in_axes=(0, 0, 0, None))(
            jax.nn.softmax(chosen), t.reward, t.discount, support
        )

    def prepare(state: RainbowState, t: Transition, key: Array) -> tuple[Array, Any]:
        """Return targets `[B, m]` and the noise of the network that learns.

        Noises are independent for what learns, what selects the next action and what evaluates it
        (Fortunato et al. 2018, Sec. 3.1).
        """
        many = noises(state.params, key, 3)
        return targets(state, t, one(many, 1), one(many, 2)), one(many, 0)

    def errors(params: Params, t: Transition, target: Array, noise: Any) -> tuple[Array, Array]:
        """Return cross-entropies and expected values of the taken actions, `[B]` each."""
        every = logits(params, t.obs, noise)
        taken = jnp.take_along_axis(every, t.action[:, None, None], axis=1)[:, 0]  # [B, m]
        return jax.vmap(cross_entropy)(target, taken), jax.nn.softmax(taken) @ support

    def feedback_of(error: Array, q: Array, target: Array) -> dict[str, Array]:
        return {"td_error": error, "q_value": q, "target": target @ support}

    def update(state: RainbowState, sample: Sample, key: Array) -> tuple[RainbowState, Info]:
        t = sample.transition
        target, noise = prepare(state, t, key)

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            error, q = errors(params, t, target, noise)
            return objective.critic(error, sample, None), (error, q)

        (value, (error, q)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        steps, opt_state = optimiser.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, steps)
        updates = state.updates + 1
        target_params = common.follow(params, state.target_params, updates, config.target_every)
        metrics = {
            "loss": value,
            "q_value": q.mean(),
            "grad_norm": optax.tree.norm(grads),
            # Much of it tells that v_min and v_max are too close together.
            "mass_at_ends": (target[:, 0] + target[:, -1]).mean(),
        }
        if not config.noisy:
            metrics["epsilon"] = jnp.asarray(epsilon(updates), jnp.float32)
        info = Info(feedback_of(error, q, target), metrics)
        return RainbowState(params, target_params, opt_state, updates), info

    def feedback(state: RainbowState, t: Transition, key: Array) -> dict[str, Array]:
        target, noise = prepare(state, t, key)
        return feedback_of(*errors(state.params, t, target, noise), target)

    return Agent(init, act, greedy, update, feedback)
