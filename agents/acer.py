"""ACER for continuous actions, as a baseline (Wang et al. 2017, Sec. 5 and Alg. 3)."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from agents import common, gaussian, options
from agents.critics import VALUES
from agents.gaussian import Behaviour
from agents.networks import Activation, Actor, Critic, Obs, Params, Value, apply, batch_of_one
from agents.types import Agent, Continuous, Info, Offers
from jaxreplay import returns
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = Offers(VALUES | {"log_ratio"}, reads=frozenset({"trajectories"}))
_PAPER = "Novati & Koumoutsakos 2019, App. D"


@dataclasses.dataclass(frozen=True)
class ACERConfig(Config):
    """ACER hyperparameters; the replay method sets the length and number of trajectories."""

    truncation: float = option(5.0, "c: importance ratios are truncated at c", _PAPER, above=0)
    trust_region: float = option(
        1.0, "delta: bound on the linearised KL divergence", _PAPER, above=0, finite=False
    )
    samples: int = option(
        5, "number of sampled actions over which the advantage is averaged", _PAPER, at_least=1
    )
    hidden: tuple[int, ...] = option((64, 64), options.HIDDEN_OF_ALL, _PAPER)
    activation: Activation = option("tanh", options.ACTIVATION)
    actor_learning_rate: float = option(1e-4, options.POLICY_LEARNING_RATE)
    critic_learning_rate: float = option(3e-4, options.VALUE_LEARNING_RATE)
    anneal: float = option(0.0, options.ANNEAL)
    tau: float = option(0.001, "soft-update rate of the average policy", _PAPER, above=0, at_most=1)
    noise_std: float = option(
        0.3, "std of the policy, for actions in [-1, 1]", "Wang et al. 2017", above=0
    )


class Networks(NamedTuple):
    """Policy, value and advantage network parameters."""

    policy: Params
    value: Params
    advantage: Params


class ACERState(NamedTuple):
    """ACER agent state."""

    networks: Networks
    average: Params  # running average of the policy network parameters
    opt_state: optax.OptState


class Choice(NamedTuple):
    """Stored or newly sampled actions for a batch, with advantages and ratios."""

    action: Array  # [B, A] float32
    advantage: Array  # [B] float32, estimate of Q(s, a) - V(s)
    log_ratio: Array  # [B] float32, log of policy / behaviour policy density


class Targets(NamedTuple):
    """Regression targets and ascent directions for a batch, held constant in the loss gradient."""

    q: Array  # [B] float32, target for Q(s, a)
    value: Array  # [B] float32, target for V(s)
    ascent: Array  # [B, A] float32, ascent direction for the policy mean


def policy_gradient(
    score: Array,
    score_new: Array,
    advantage: Array,
    advantage_new: Array,
    log_ratio: Array,
    log_ratio_new: Array,
    truncation: float,
) -> Array:
    """Return one example's ascent direction `[A]` for the policy mean (Wang et al. 2017, Eq. 14).

    The importance ratio pi/mu of the policy to the behaviour policy is truncated at c for the
    stored action. A bias correction, evaluated at an action sampled from the current policy,
    compensates for the truncation.

    Args:
      score: `[A]`, gradient of the stored action's log density with respect to the policy mean.
      score_new: `[A]`, the same gradient for the sampled action.
      advantage: `[]`, Q^opc - V of the stored action, with Q^opc a Retrace estimate with traces 1.
      advantage_new: `[]`, Q - V of the sampled action.
      log_ratio: `[]`, log pi/mu of the stored action.
      log_ratio_new: `[]`, log pi/mu of the sampled action.
      truncation: the threshold c.
    """
    truncated = jnp.minimum(jnp.exp(log_ratio), truncation) * advantage * score
    excess = jax.nn.relu(1 - truncation * jnp.exp(-log_ratio_new))
    return truncated + excess * advantage_new * score_new


def within_trust_region(gradient: Array, divergence: Array, bound: float) -> Array:
    """Project an ascent direction onto the trust region (Wang et al. 2017, Eq. 12).

    The result `[A]`, `g - max(0, (k^T g - delta) / |k|^2) k`, is the direction z closest to g that
    satisfies `k^T z <= delta`. Here g is `gradient` `[A]`, k is `divergence` `[A]`, the gradient of
    the KL divergence, and delta is `bound`.
    """
    excess = jax.nn.relu(gradient @ divergence - bound)
    return gradient - excess / jnp.maximum(jnp.square(divergence).sum(), 1e-12) * divergence


class _ACER:
    """Implementation of ACER."""

    def __init__(self, config: ACERConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("ACER", space, Continuous, objective, OFFERS)
        hidden, activation = config.hidden, config.activation
        self.config = config
        self.size = space.size
        self.variance = config.noise_std**2
        self.policy = Actor(self.size, hidden, activation)
        self.value = Value((*hidden, 1), activation)
        self.advantage = Critic(hidden, activation)
        self.optimiser = common.adam_per_field(
            config.anneal,
            policy=config.actor_learning_rate,
            value=config.critic_learning_rate,
            advantage=config.critic_learning_rate,
        )

    def init(self, key: Array, obs: Obs, action: Array) -> ACERState:
        keys = jax.random.split(key, 3)
        networks = Networks(
            self.policy.init(keys[0], batch_of_one(obs)),
            self.value.init(keys[1], batch_of_one(obs)),
            self.advantage.init(keys[2], batch_of_one(obs), action[None]),
        )
        average = networks.policy
        return ACERState(networks, average, self.optimiser.init(networks))

    def mean(self, params: Params, obs: Obs) -> Array:
        return apply(self.policy, params, obs)

    def values(self, networks: Networks, obs: Obs) -> Array:
        return apply(self.value, networks.value, obs)[:, 0]

    def q_values(self, networks: Networks, obs: Obs, action: Array, samples: Array) -> Array:
        """Return Q-values `[B]` from the stochastic dueling network (Wang et al. 2017, Eq. 13).

        Q is `V(s) + A(s, a) - mean_i A(s, u_i)`, where the u_i are policy `samples` `[n, B, A]`.
        """
        params = networks.advantage
        mean = jax.vmap(lambda u: apply(self.advantage, params, obs, u))(samples).mean(axis=0)
        return self.values(networks, obs) + apply(self.advantage, params, obs, action) - mean

    def draw(self, mean: Array, key: Array) -> Array:
        """Sample actions `[n, B, A]` from the policy, for use in `q_values`."""
        means = jnp.broadcast_to(mean, (self.config.samples, *mean.shape))
        return gaussian.sample(means, jnp.asarray(self.variance, means.dtype), key)

    def greedy(self, state: ACERState, obs: Obs) -> Array:
        return self.mean(state.networks.policy, obs)

    def act(self, state: ACERState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, Behaviour]:
        return gaussian.act(self.greedy(state, obs), jnp.asarray(self.variance), key)

    def trust(self, mean: Array, t: Transition, action: Array) -> Trust:
        behaviour = cast(Behaviour, t.extras)
        return gaussian.trust(mean, jnp.asarray(self.variance), behaviour, action)

    def estimates(
        self, networks: Networks, sample: Sample, q: Array, value: Array, log_ratio: Array
    ) -> tuple[Array, Array]:
        """Return the Retrace estimates Q^ret and Q^opc `[B]` for consecutive steps.

        Q^ret has trace coefficients of min(1, rho^(1/A)), where rho is the importance ratio and A
        the number of action dimensions. Q^opc, which the policy gradient uses, has trace
        coefficients of 1.
        """
        t = sample.transition
        shape = common.read_aux("ACER", sample, "slots", "the replay method 'windows'").shape
        next_value = self.values(networks, t.next_obs)

        def estimate(log_trace: Array) -> Array:
            return returns.retrace(
                t.reward.reshape(shape), t.discount.reshape(shape), t.last.reshape(shape),
                value.reshape(shape), (q - value).reshape(shape), next_value.reshape(shape),
                log_trace.reshape(shape),
            ).ravel()  # fmt: skip

        return estimate(log_ratio / self.size), estimate(jnp.zeros_like(log_ratio))

    def ascent(self, state: ACERState, t: Transition, stored: Choice, new: Choice) -> Array:
        """Return the ascent direction `[B, A]` for the policy mean, within the trust region."""
        mean = self.greedy(state, t.obs)
        ascent = jax.vmap(policy_gradient, (0, 0, 0, 0, 0, 0, None))(
            (stored.action - mean) / self.variance, (new.action - mean) / self.variance,
            stored.advantage, new.advantage, stored.log_ratio, new.log_ratio,
            self.config.truncation,
        )  # fmt: skip
        average = self.mean(state.average, t.obs)
        divergence = (mean - average) / self.variance  # gradient of the KL divergence
        return jax.vmap(within_trust_region, (0, 0, None))(
            ascent, divergence, self.config.trust_region
        )

    def loss(
        self, networks: Networks, t: Transition, samples: Array, targets: Targets
    ) -> tuple[Array, dict[str, Array]]:
        mean = self.mean(networks.policy, t.obs)
        policy = -(targets.ascent * mean).sum(axis=1).mean()
        q_error = targets.q - self.q_values(networks, t.obs, t.action, samples)
        v_error = targets.value - self.values(networks, t.obs)
        value = 0.5 * (jnp.square(q_error) + jnp.square(v_error)).mean()
        return policy + value, {"loss": value, "actor_loss": policy}

    def update(self, state: ACERState, sample: Sample, key: Array) -> tuple[ACERState, Info]:
        key_duel, key_new = jax.random.split(key)
        t, networks = sample.transition, state.networks
        mean = self.greedy(state, t.obs)
        trust = self.trust(mean, t, t.action)
        samples, value = self.draw(mean, key_duel), self.values(networks, t.obs)
        q = self.q_values(networks, t.obs, t.action, samples)
        q_ret, q_opc = self.estimates(networks, sample, q, value, trust.log_ratio)

        action, _ = gaussian.act(mean, jnp.asarray(self.variance), key_new)
        advantage = self.q_values(networks, t.obs, action, samples) - value
        new = Choice(action, advantage, self.trust(mean, t, action).log_ratio)
        stored = Choice(t.action, q_opc - value, trust.log_ratio)
        v_target = returns.trace_corrected_value(q_ret, value, q - value, trust.log_ratio)
        targets = Targets(q_ret, v_target, self.ascent(state, t, stored, new))

        grads, metrics = jax.grad(self.loss, has_aux=True)(networks, t, samples, targets)
        networks, opt_state = common.descend(self.optimiser, grads, state.opt_state, networks)
        average = common.soft_update(networks.policy, state.average, self.config.tau)
        feedback = {"td_error": q_ret - q, "q_value": q, "target": q_ret}
        metrics |= {"q_value": q.mean(), "grad_norm": common.global_norm(grads)}
        info = common.add_trust(Info(feedback, metrics), trust)
        return ACERState(networks, average, opt_state), info

    def feedback(self, state: ACERState, t: Transition, key: Array) -> dict[str, Array]:
        mean = self.greedy(state, t.obs)
        q = self.q_values(state.networks, t.obs, t.action, self.draw(mean, key))
        target = t.reward + t.discount * self.values(state.networks, t.next_obs)
        feedback = {"td_error": target - q, "q_value": q, "target": target}
        return feedback | common.trust_feedback(self.trust(mean, t, t.action))


def acer(config: ACERConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create an ACER agent with a fixed-variance Gaussian policy.

    Batches must consist of windows of T consecutive steps, whose slots are `Sample.aux.slots`
    `[T, number of windows]`. ACER does not use the losses in `objective`.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density or sets a loss on TD errors.
    """
    agent = _ACER(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
