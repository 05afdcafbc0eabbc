"""Rainbow: DQN that learns distributions of returns, with noisy layers (Hessel et al. 2018).

Double, dueling and noisy are options here; multi-step returns belong to the loop, prioritised
replay to the replay method. Without the distributions it is `agents.dqn`.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common
from agents.networks import Obs, Params, QNetwork, apply, dense
from agents.noisy import Noise, draw_noises, noisy, with_noise
from agents.options import QNetworkOptions
from agents.types import Agent, Discrete, Info
from jaxreplay import clocks, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import option, override
from jaxreplay.types import Array, Sample, Transition

_PAPER = "Hessel et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class RainbowConfig(QNetworkOptions):
    """Hyperparameters of Rainbow; the defaults suit small environments, such as CartPole.

    Random actions are taken only if it is not noisy. `experiments/runs/presets` holds the
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

    priority: Literal["cross_entropy", "kl"] = option(
        "cross_entropy",
        "what replay methods are told as TD error: the loss, as the code of Oh et al. 2021, or the "
        "KL divergence, which is less by the target's entropy (Hessel et al. 2018)",
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
    probability between the two atoms around it, in proportion to how near they are: an atom gets
    `1 - distance / gap` of it, and all of it where they coincide.

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


def kl_divergence(cross_entropy: Array, target: Array) -> Array:
    """Return `KL(target || prediction)` `[]`, given the cross-entropy `[]` and the target `[m]`.

    It is the cross-entropy less the target's entropy, which is constant for the prediction: the
    gradient is the same. Hessel et al. 2018 prioritise by it (Sec. "The Integrated Agent").
    """
    chex.assert_rank([cross_entropy, target], [0, 1])
    return jnp.maximum(cross_entropy - jax.scipy.special.entr(target).sum(), 0.0)


class _Rainbow:
    """The functions of one agent, over a network that is made once."""

    def __init__(self, config: RainbowConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_made("Rainbow", space, Discrete, objective)
        self.config, self.objective = config, objective or objectives.weighted()
        common.require(
            self.objective.error is None,
            "Rainbow learns distributions and has no scalar TD error whose loss could be replaced: "
            "leave the loss to the agent (--replay.loss agent), or use another replay method",
        )
        self.num_actions = space.n
        layer = noisy(config.sigma) if config.noisy else dense
        self.network = QNetwork(
            space.n, config.network, config.hidden, config.dueling, config.atoms, layer
        )
        self.support = jnp.linspace(config.v_min, config.v_max, config.atoms)  # [m], ascending
        self.optimiser = config.make_optimiser()
        self.epsilon = config.epsilon()
        objectives.check_no_density(self.objective, "Rainbow's policy has no density")

    def init(self, key: Array, obs: Obs, action: Array) -> RainbowState:
        del action
        params = self.network.init(key, obs[None])
        updates = jnp.zeros((), jnp.int32)
        return RainbowState(params, params, self.optimiser.init(params), updates)

    def noises(self, params: Params, key: Array, count: int) -> Noise | None:
        """Return `count` noises for networks of such parameters, leaves `[count, ...]`, or None."""
        return draw_noises(params, key, count) if self.config.noisy else None

    def logits(self, params: Params, obs: Obs, noise: Noise | None) -> Array:
        params = params if noise is None else with_noise(params, noise)
        return apply(self.network, params, obs)  # [B, n, m]

    def best(self, params: Params, obs: Obs, noise: Noise | None) -> Array:
        q = jax.nn.softmax(self.logits(params, obs, noise)) @ self.support
        return jnp.argmax(q, axis=-1).astype(jnp.int32)

    def greedy(self, state: RainbowState, obs: Obs) -> Array:
        return self.best(state.params, obs, None)

    def act(
        self, state: RainbowState, obs: Obs, key: Array, previous: Any = None
    ) -> tuple[Array, None]:
        del previous
        if self.config.noisy:  # every environment explores by noise of its own
            noises = self.noises(state.params, key, obs.shape[0])
            best = jax.vmap(self.best, in_axes=(None, 0, 0))
            return best(state.params, obs[:, None], noises)[:, 0], None
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def targets(
        self, state: RainbowState, t: Transition, select: Noise | None, evaluate: Noise | None
    ) -> Array:
        """Return targets `[B, m]`, given the noises that select and evaluate the next action."""
        next_logits = self.logits(state.target_params, t.next_obs, evaluate)
        if self.config.double:
            action = self.best(state.params, t.next_obs, select)
        else:
            action = jnp.argmax(jax.nn.softmax(next_logits) @ self.support, axis=-1)
        probability = jax.nn.softmax(common.of_action(next_logits, action))
        return jax.vmap(project, in_axes=(0, 0, 0, None))(
            probability, t.reward, t.discount, self.support
        )

    def prepare(self, state: RainbowState, t: Transition, key: Array) -> tuple[Array, Noise | None]:
        """Return targets `[B, m]` and the noise of the network that learns.

        Noises are independent for what learns, what selects the next action and what evaluates it
        (Fortunato et al. 2018, Sec. 3.1).
        """
        noises = self.noises(state.params, key, 3)
        learn, select, evaluate = (jax.tree.map(lambda x, i=i: x[i], noises) for i in range(3))
        return self.targets(state, t, select, evaluate), learn

    def errors(
        self, params: Params, t: Transition, target: Array, noise: Noise | None
    ) -> tuple[Array, Array]:
        """Return cross-entropies and expected values of the taken actions, `[B]` each."""
        taken = common.of_action(self.logits(params, t.obs, noise), t.action)  # [B, m]
        return jax.vmap(cross_entropy)(target, taken), jax.nn.softmax(taken) @ self.support

    def _feedback(self, error: Array, q: Array, target: Array) -> dict[str, Array]:
        if self.config.priority == "kl":
            error = jax.vmap(kl_divergence)(error, target)
        return {"td_error": error, "q_value": q, "target": target @ self.support}

    def update(self, state: RainbowState, sample: Sample, key: Array) -> tuple[RainbowState, Info]:
        t, config = sample.transition, self.config
        target, noise = self.prepare(state, t, key)

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            error, q = self.errors(params, t, target, noise)
            return self.objective.critic(error, sample, None), (error, q)

        (value, (error, q)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = clocks.tick(state.updates, config.target_every)
        target_params = common.follow_every(
            params, state.target_params, updates, config.target_every
        )
        metrics = {
            "loss": value,
            "q_value": q.mean(),
            "grad_norm": optax.tree.norm(grads),
            # A large share says that v_min and v_max are too close together.
            "mass_at_ends": (target[:, 0] + target[:, -1]).mean(),
        }
        if not config.noisy:
            metrics["epsilon"] = jnp.asarray(self.epsilon(updates), jnp.float32)
        info = Info(self._feedback(error, q, target), metrics)
        return RainbowState(params, target_params, opt_state, updates), info

    def feedback(self, state: RainbowState, t: Transition, key: Array) -> dict[str, Array]:
        target, noise = self.prepare(state, t, key)
        return self._feedback(*self.errors(state.params, t, target, noise), target)


def rainbow(
    config: RainbowConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Make a Rainbow agent; `objective` weighs its cross-entropies (default: by the weights).

    Its feedback: `td_error` is the unweighted cross-entropy or KL divergence, by the option
    `priority` (never negative), which stands for the size of the TD error; `q_value` the mean of
    the taken action's distribution; `target` the mean of the projected target. Noise of noisy
    layers is drawn anew for every step of each environment, and three times in an update; `greedy`
    acts by the means of their weights.

    Raises:
      ValueError: the action space is not discrete, or the objective is a loss of scalar errors.
    """
    made = _Rainbow(config, action_space, objective)
    return Agent(made.init, made.act, made.greedy, made.update, made.feedback)
