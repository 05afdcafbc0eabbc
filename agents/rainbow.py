"""Rainbow: distributional DQN with noisy layers (Hessel et al. 2018).

Double Q-learning, dueling and noisy layers are options of the agent. Multi-step returns are an
option of the training loop, and prioritised replay is a replay method. For non-distributional
DQN, see `agents.dqn`.
"""

import dataclasses
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common
from agents.dqn import DQNState
from agents.networks import Obs, Params, QNetwork, apply, dense
from agents.noisy import Noise, draw_noises, noisy, with_noise
from agents.options import QNetworkOptions
from agents.types import Agent, Discrete, Info
from jaxreplay import objectives
from jaxreplay.loops import counters
from jaxreplay.objectives import Objective
from jaxreplay.option import option, override
from jaxreplay.types import Array, Sample, Transition

_PAPER = "Hessel et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class RainbowConfig(QNetworkOptions):
    """Rainbow hyperparameters; the defaults suit small environments, such as CartPole.

    Epsilon-greedy exploration is used only if `noisy` is False. `experiments/runs/presets` contains
    the published Atari settings.
    """

    dueling: bool = override(QNetworkOptions, "dueling", True, "Wang et al. 2016")
    adam_eps: float = override(QNetworkOptions, "adam_eps", 1.5e-4, _PAPER)
    target_every: int = override(QNetworkOptions, "target_every", 200)
    noisy: bool = option(
        True, "explore with noisy layers instead of epsilon-greedy", "Fortunato et al. 2018"
    )
    sigma: float = option(
        0.1, "initial noisy-layer sigma times sqrt(inputs); 0.5 is common for Atari", above=0
    )
    atoms: int = option(
        51, "number of atoms of the return distribution", "Bellemare et al. 2017", at_least=2
    )
    v_min: float = option(-10.0, "smallest atom", "Bellemare et al. 2017")
    v_max: float = option(
        10.0,
        "largest atom; larger targets are clipped (CartPole returns reach 100)",
        "Bellemare et al. 2017",
    )

    priority: Literal["cross_entropy", "kl"] = option(
        "cross_entropy",
        "feedback td_error: the cross-entropy, as in the code of Oh et al. 2021, or the KL "
        "divergence, which subtracts the target entropy (Hessel et al. 2018)",
    )

    def check(self) -> None:
        """Raise ValueError unless `v_min` is less than `v_max`."""
        if not self.v_min < self.v_max:
            raise ValueError(
                f"v_min must be less than v_max, got v_min {self.v_min} and v_max {self.v_max}"
            )


def project(probability: Array, reward: Array, discount: Array, support: Array) -> Array:
    """Project one example's target distribution onto the m atoms (Bellemare et al. 2017, Eq. 7).

    Each atom z moves to `reward + discount * z`, clipped to the range of `support`. Linear
    interpolation splits the probability of z between the two neighbouring atoms. Each receives the
    fraction `1 - distance / gap`, where `gap` is the spacing of the atoms.

    Args:
      probability: `[m]`, return distribution of the next state.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated; all probability then moves to the reward.
      support: `[m]`, evenly spaced atoms in ascending order.
    """
    chex.assert_rank([probability, reward, discount, support], [1, 0, 0, 1])
    chex.assert_equal_shape([probability, support])
    gap = (support[-1] - support[0]) / (support.shape[0] - 1)
    moved = jnp.clip(reward + discount * support, support[0], support[-1])
    share = jnp.clip(1 - jnp.abs(moved[None, :] - support[:, None]) / gap, 0, 1)  # [m, m]
    return share @ probability


def cross_entropy(target: Array, logits: Array) -> Array:
    """Return the cross-entropy `[]` of `softmax(logits)` `[m]` relative to `target` `[m]`."""
    chex.assert_rank([target, logits], 1)
    return -jnp.dot(target, jax.nn.log_softmax(logits))


def kl_divergence(cross_entropy: Array, target: Array) -> Array:
    """Return `KL(target || prediction)` `[]` from their cross-entropy `[]` and `target` `[m]`.

    The divergence is the cross-entropy minus the target entropy, and has the same gradient. Hessel
    et al. 2018 use the divergence as the priority (Sec. "The Integrated Agent").
    """
    chex.assert_rank([cross_entropy, target], [0, 1])
    return jnp.maximum(cross_entropy - jax.scipy.special.entr(target).sum(), 0.0)


class _Rainbow:
    """Implementation of Rainbow."""

    def __init__(self, config: RainbowConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("Rainbow", space, Discrete, objective, chooses=True)
        self.config, self.objective = config, objective or objectives.weighted()
        common.require(
            self.objective.error is None,
            "objective.error must be None for Rainbow, whose loss is a cross-entropy and not a "
            "function of TD errors: use --replay.loss agent, or another replay method",
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

    def init(self, key: Array, obs: Obs, action: Array) -> DQNState:
        del action
        params = self.network.init(key, obs[None])
        updates = jnp.zeros((), jnp.int32)
        return DQNState(params, params, self.optimiser.init(params), updates)

    def noises(self, params: Params, key: Array, count: int) -> Noise | None:
        """Draw `count` noise samples, arrays `[count, ...]`; None without noisy layers."""
        return draw_noises(params, key, count) if self.config.noisy else None

    def logits(self, params: Params, obs: Obs, noise: Noise | None) -> Array:
        params = params if noise is None else with_noise(params, noise)
        return apply(self.network, params, obs)  # [B, n, m]

    def best(self, params: Params, obs: Obs, noise: Noise | None) -> Array:
        q = jax.nn.softmax(self.logits(params, obs, noise)) @ self.support
        return jnp.argmax(q, axis=-1).astype(jnp.int32)

    def greedy(self, state: DQNState, obs: Obs) -> Array:
        return self.best(state.params, obs, None)

    def act(
        self, state: DQNState, obs: Obs, key: Array, previous: Any = None
    ) -> tuple[Array, None]:
        del previous
        if self.config.noisy:  # independent noise per environment
            noises = self.noises(state.params, key, obs.shape[0])
            best = jax.vmap(self.best, in_axes=(None, 0, 0))
            return best(state.params, obs[:, None], noises)[:, 0], None
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def targets(
        self, state: DQNState, t: Transition, select: Noise | None, evaluate: Noise | None
    ) -> Array:
        """Return target distributions `[B, m]`.

        `select` and `evaluate` are noise for the online and the target network.
        """
        next_logits = self.logits(state.target_params, t.next_obs, evaluate)
        if self.config.double:
            action = self.best(state.params, t.next_obs, select)
        else:
            action = jnp.argmax(jax.nn.softmax(next_logits) @ self.support, axis=-1)
        probability = jax.nn.softmax(common.batched_index(next_logits, action))
        return jax.vmap(project, in_axes=(0, 0, 0, None))(
            probability, t.reward, t.discount, self.support
        )

    def prepare(self, state: DQNState, t: Transition, key: Array) -> tuple[Array, Noise | None]:
        """Return target distributions `[B, m]`, and noise for the online network's predictions.

        Predictions, next-action selection and next-action evaluation use independent noise
        (Fortunato et al. 2018, Sec. 3.1).
        """
        noises = self.noises(state.params, key, 3)
        learn, select, evaluate = (jax.tree.map(lambda x, i=i: x[i], noises) for i in range(3))
        return self.targets(state, t, select, evaluate), learn

    def errors(
        self, params: Params, t: Transition, target: Array, noise: Noise | None
    ) -> tuple[Array, Array]:
        """Return cross-entropies `[B]` and expected returns `[B]` for the stored actions."""
        taken = common.batched_index(self.logits(params, t.obs, noise), t.action)  # [B, m]
        return jax.vmap(cross_entropy)(target, taken), jax.nn.softmax(taken) @ self.support

    def gradient_norms(
        self, params: Params, t: Transition, target: Array, noise: Noise | None
    ) -> Array:
        """Return norms `[B]` of the gradients of cross-entropies by the stored actions' logits."""
        taken = common.batched_index(self.logits(params, t.obs, noise), t.action)
        return jnp.linalg.norm(jax.nn.softmax(taken) - target, axis=-1)

    def _feedback(self, error: Array, q: Array, target: Array) -> dict[str, Array]:
        if self.config.priority == "kl":
            error = jax.vmap(kl_divergence)(error, target)
        return {"td_error": error, "q_value": q, "target": target @ self.support}

    def update(self, state: DQNState, sample: Sample, key: Array) -> tuple[DQNState, Info]:
        t, config = sample.transition, self.config
        target, noise = self.prepare(state, t, key)
        learned, learned_target = sample, target
        if self.objective.choose is not None:
            norms = self.gradient_norms(state.params, t, target, noise)[None]
            ((rows, learned),), _ = common.choose(self.objective, norms, sample, key)
            learned_target = target[rows]

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            error, q = self.errors(params, learned.transition, learned_target, noise)
            return self.objective.critic(error, learned, None), (error, q)

        (value, (error, q)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        if self.objective.choose is not None:  # feedback is that of all candidates
            error, q = self.errors(state.params, t, target, noise)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = counters.increment(state.updates, config.target_every)
        target_params = common.periodic_update(
            params, state.target_params, updates, config.target_every
        )
        metrics = {
            "loss": value,
            "q_value": q.mean(),
            "grad_norm": optax.tree.norm(grads),
            # A large probability of the end atoms indicates that [v_min, v_max] is too narrow.
            "mass_at_ends": (target[:, 0] + target[:, -1]).mean(),
        }
        if not config.noisy:
            metrics["epsilon"] = jnp.asarray(self.epsilon(updates), jnp.float32)
        info = Info(self._feedback(error, q, target), metrics)
        return DQNState(params, target_params, opt_state, updates), info

    def feedback(self, state: DQNState, t: Transition, key: Array) -> dict[str, Array]:
        target, noise = self.prepare(state, t, key)
        return self._feedback(*self.errors(state.params, t, target, noise), target)


def rainbow(
    config: RainbowConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Create a Rainbow agent.

    The feedback `td_error` is the non-negative unweighted cross-entropy or KL divergence, depending
    on `config.priority`. `q_value` and `target` are the means of the predicted distribution for the
    stored action and of the projected target. Noise is sampled for each step of each
    environment, and three times per update; `greedy` uses the mean weights.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects the importance-weighted cross-entropy.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` has an `error` or requires
        an action density.
    """
    agent = _Rainbow(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
