"""SAC with N critics and a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Its options include REDQ, DroQ, CrossQ, SR-SAC, SimBa and RLPD.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import chex
import jax
import jax.numpy as jnp
import optax

from agents import common, distributions, ensembles, gaussian, options
from agents.critics import (
    DENSITY_OFFERS,
    Critics,
    critic_feedback,
    critic_gradient,
    critic_info,
    fit,
    largest_magnitude,
    mean_magnitude,
)
from agents.ensembles import Ensemble
from agents.gaussian import Behaviour
from agents.layers import LayerOptions
from agents.learned_weights import learn_weights
from agents.networks import Actor, Critic, Obs, Params, apply, batch_of_one, learning
from agents.types import Agent, Continuous, Info
from jaxreplay import counters, objectives
from jaxreplay.loops import cond_if_any
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition, Trust

OFFERS = DENSITY_OFFERS
_PAPER = "Haarnoja et al. 2018, Tab. 1"
_REDQ, _DROQ = "Chen et al. 2021", "Hiraoka et al. 2022"
_CROSSQ = "Bhatt et al. 2024"

Reduce: TypeAlias = Literal["min", "mean"]
_REDUCE: Mapping[str, Callable[..., Array]] = MappingProxyType({"min": jnp.min, "mean": jnp.mean})


@dataclasses.dataclass(frozen=True)
class SACConfig(Config):
    """SAC hyperparameters."""

    policy_delay: int = option(1, "critic updates per update of actor and temperature", at_least=1)
    initial_alpha: float = option(1.0, options.INITIAL_ALPHA)
    target_entropy: float = option(-1.0, "target entropy per action dimension", _PAPER)
    alpha_loss: Literal["alpha", "log_alpha"] = option(
        "alpha",
        "factor of entropy - target entropy in the temperature loss; log_alpha in REDQ's code",
    )
    backup_entropy: bool = option(True, "include the entropy of the next action in targets")
    critics: int = option(2, "number of critics N; 10 in REDQ", _PAPER, at_least=1, at_most=1_000)
    target_subset: int | None = option(
        None, f"critics drawn for the targets of each update ({_REDQ}: 2); none: all", at_least=1
    )
    target_reduce: Reduce = option("min", "reduction over target critics in the target")
    actor_reduce: Reduce = option("min", f"reduction over critics in the actor loss; {_REDQ}: mean")
    priority_from: Literal["largest", "mean"] = option(
        "largest", "td_error of N critics: the error of largest magnitude, or the mean magnitude"
    )
    reset_every: int | None = option(
        None,
        "updates between re-initialisations of the agent, which keep the replay (Nikishin et al. "
        "2022); none: never",
        at_least=1,
    )
    network: Literal["mlp", "residual"] = option(
        "mlp", "multilayer perceptrons, or SimBa's residual blocks of the widths in hidden"
    )
    hidden: tuple[int, ...] = option((256, 256), options.HIDDEN_OF_ALL, options.TWINS)
    critic_hidden: tuple[int, ...] | None = option(
        None, "hidden layer sizes of the critics; none: the sizes in hidden", at_least=1
    )
    layer_norm: bool = option(False, f"normalise hidden layers of the critics ({_DROQ})")
    dropout: float = option(
        0.0, f"dropout rate in hidden layers of the critics; {_DROQ}: 0.01", at_least=0, below=1
    )
    batch_renorm: bool = option(
        False, f"batch renormalisation before every layer of critics and actor ({_CROSSQ})"
    )
    renorm_warmup: int = option(
        100_000,
        "updates with batch normalisation before renormalisation",
        f"{_CROSSQ}, code",
        at_least=0,
        needs=("batch_renorm",),
    )
    actor_learning_rate: float = option(3e-4, options.ACTOR_LEARNING_RATE, options.TWINS)
    critic_learning_rate: float = option(3e-4, options.CRITIC_LEARNING_RATE, options.TWINS)
    alpha_learning_rate: float = option(3e-4, options.ALPHA_LEARNING_RATE, _PAPER)
    adam_b1: float = option(
        0.9, "Adam's b1 for actor and critics; 0.5 in CrossQ", at_least=0, below=1
    )
    weight_decay: float = option(
        0.0, "decoupled weight decay of actor and critics; 0.01 in SimBa", at_least=0, at_most=1
    )
    target_network: bool = option(
        True, f"use target networks; false: targets from the critics themselves ({_CROSSQ})"
    )
    tau: float = option(0.005, options.TAU, options.TWINS)

    @property
    def period(self) -> int:
        """Least common multiple of `policy_delay` and `reset_every`, in updates."""
        return math.lcm(self.policy_delay, self.reset_every or 1)

    def check(self) -> None:
        """Raise ValueError if a combination of options is invalid."""
        subset = self.target_subset
        common.require(
            self.period < 2**31,
            f"policy_delay {self.policy_delay} and reset_every {self.reset_every} must have a "
            "common multiple below 2^31: make reset_every a multiple of policy_delay",
        )
        common.require(
            subset is None or subset <= self.critics,
            f"target_subset must be at most critics={self.critics}, got {subset}",
        )
        if self.network == "residual":
            common.require(
                not (self.layer_norm or self.dropout or self.batch_renorm),
                "network 'residual' has its own normalisation: leave out layer_norm, dropout and "
                "batch_renorm",
            )
            for name in ("hidden", "critic_hidden"):
                sizes = getattr(self, name) or self.hidden
                common.require(
                    len(set(sizes)) == 1,
                    f"network 'residual' requires {name} to have equal sizes, got {sizes}",
                )


class Clock(NamedTuple):
    """Number of updates, and the metrics of the latest actor update.

    Updates that skip the actor log these metrics again.
    """

    updates: Array  # [] int32
    metrics: dict[str, Array]  # [] float32 each


class SACState(NamedTuple):
    """SAC agent state. The networks include statistics if they are batch-normalised."""

    actor: Params
    critics: Ensemble
    target_critics: Ensemble | None  # None without target networks
    log_alpha: Array  # [] float32, logarithm of the temperature
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    alpha_opt_state: optax.OptState
    clock: Clock | None = None  # only with a policy delay or resets


class Extras(NamedTuple):
    """Extras stored with each step if the replay method requires an action density."""

    behaviour: Behaviour  # [E, A] each, distribution of the action before tanh
    pre_tanh: Array  # [E, A], action before tanh; arctanh can't recover it near +-1


def soft_target(
    q_t: Array,
    log_prob_t: Array,
    alpha: Array,
    reward: Array,
    discount: Array,
    reduce: Reduce = "min",
) -> Array:
    """Return one example's soft target `[]` (Haarnoja et al. 2018, Eq. 5 and 6).

    The target is `reward + discount * (min_n q_t[n] - alpha * log_prob_t)`, over N critics.

    Args:
      q_t: `[N]`, the target critics' Q-values for the next observation and a sampled action.
      log_prob_t: `[]`, log density of the sampled action.
      alpha: `[]`, temperature.
      reward: `[]`.
      discount: `[]`, 0 if the episode terminated.
      reduce: the minimum over critics, or their mean.
    """
    chex.assert_rank([q_t, log_prob_t, alpha, reward, discount], [1, 0, 0, 0, 0])
    return reward + discount * (_REDUCE[reduce](q_t) - alpha * log_prob_t)


def temperature_loss(
    log_alpha: Array,
    log_prob: Array,
    target_entropy: float,
    factor: Literal["alpha", "log_alpha"] = "alpha",
) -> Array:
    """Return the temperature loss, `-alpha * mean(log_prob + target_entropy)` `[]`.

    Haarnoja et al. 2018, Eq. 18. The policy entropy is the mean of `-log_prob` `[B]`. Gradient
    descent increases alpha if the entropy is below `target_entropy`, and decreases it otherwise.
    With `factor="log_alpha"`, log alpha takes the place of alpha, as in the authors' code, so that
    the gradient does not shrink with alpha.
    """
    scale = jnp.exp(log_alpha) if factor == "alpha" else log_alpha
    return -scale * jnp.mean(log_prob + target_entropy)


class _SAC:
    """Implementation of SAC."""

    def __init__(self, config: SACConfig, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("SAC", space, Continuous, objective, OFFERS)
        self.config, self.objective = config, common.with_default_loss(objective, objectives.mse)
        _check_objective(config, self.objective)
        self.target_entropy = config.target_entropy * space.size
        self.actor, self.critic = _networks(config, space.size)
        optimiser = functools.partial(
            common.adam, b1=config.adam_b1, decoupled_decay=config.weight_decay
        )
        self.actor_optimiser = optimiser(config.actor_learning_rate)
        self.critic_optimiser = optimiser(config.critic_learning_rate)
        self.alpha_optimiser = common.adam(config.alpha_learning_rate)

    def init(self, key: Array, obs: Obs, action: Array) -> SACState:
        actor_key, critic_key = jax.random.split(key)
        actor_params = self.actor.init(actor_key, batch_of_one(obs))
        critics = ensembles.init_ensemble(
            self.critic, critic_key, batch_of_one(obs), action[None], self.config.critics
        )
        log_alpha = jnp.asarray(math.log(self.config.initial_alpha), jnp.float32)
        clock = None
        if self.config.policy_delay > 1 or self.config.reset_every:
            zero = jnp.zeros((), jnp.float32)
            clock = Clock(jnp.zeros((), jnp.int32), {"actor_loss": zero, "entropy": zero})
        return SACState(
            actor=actor_params,
            critics=critics,
            target_critics=critics if self.config.target_network else None,
            log_alpha=log_alpha,
            actor_opt_state=self.actor_optimiser.init({"params": actor_params["params"]}),
            critic_opt_state=self.critic_optimiser.init(ensembles.trainable(critics)),
            alpha_opt_state=self.alpha_optimiser.init(log_alpha),
            clock=clock,
        )

    def policy(self, params: Params, obs: Obs) -> distributions.TanhNormal:
        return distributions.from_outputs(apply(self.actor, params, obs))

    def greedy(self, state: SACState, obs: Obs) -> Array:
        return distributions.mode(self.policy(state.actor, obs))

    def act(
        self, state: SACState, obs: Obs, key: Array, _: Any = None
    ) -> tuple[Array, Extras | None]:
        dist = self.policy(state.actor, obs)
        pre_tanh = dist.mean + jnp.exp(dist.log_std) * jax.random.normal(key, dist.mean.shape)
        extras = Extras(_before_tanh(dist), pre_tanh) if self.objective.requires.density else None
        return jnp.tanh(pre_tanh), extras

    def trust(self, dist: distributions.TanhNormal, t: Transition) -> Trust | None:
        if not self.objective.requires.density:
            return None
        # Importance ratio and KL divergences are invariant under tanh, so use the Gaussians.
        extras = cast(Extras, t.extras)
        return gaussian.trust(*_before_tanh(dist), extras.behaviour, extras.pre_tanh)

    def noise(self, key: Array, use: int) -> Array | None:
        """Return the dropout key of forward pass `use` of an update, or None without dropout."""
        return jax.random.fold_in(key, use) if self.config.dropout else None

    def critics(self, state: SACState, key: Array) -> Critics:
        def value(params: Params, t: Transition, key: Array | None = None) -> Array:
            return apply(self.critic, params, t.obs, t.action, key=key)

        lagged = state.critics if state.target_critics is None else state.target_critics
        return Critics(value, state.critics, lagged, self.noise(key, 1), self.combine)

    @property
    def combine(self) -> Callable[[Array], Array]:
        mean = self.config.priority_from == "mean"
        return mean_magnitude if mean else largest_magnitude

    def members(self, key: Array) -> Array | None:
        """Draw the critics for targets, and return their indices `[M]` int32, or None for all."""
        subset, size = self.config.target_subset, self.config.critics
        if subset is None or subset == size:
            return None
        return ensembles.draw_members(jax.random.fold_in(key, 2), size, subset)

    def soft_targets(self, state: SACState, t: Transition, q: Array, log_prob: Array) -> Array:
        """Return the targets `[B]` for values `[M, B]` of the next observations and actions."""
        alpha = (
            jnp.exp(state.log_alpha) if self.config.backup_entropy else jnp.zeros((), jnp.float32)
        )
        target = functools.partial(soft_target, reduce=self.config.target_reduce)
        return jax.vmap(target, in_axes=(1, 0, None, 0, 0))(
            q, log_prob, alpha, t.reward, t.discount
        )

    def targets(self, state: SACState, t: Transition, key: Array) -> Array:
        dist = self.policy(state.actor, t.next_obs)
        action, log_prob = distributions.sample_and_log_prob(dist, key)
        critics = self.critics(state, key).lagged
        members = self.members(key)
        if members is not None:
            critics = ensembles.take(critics, members)
        noise = self.noise(key, 3)
        q = ensembles.apply_ensemble(self.critic, critics, t.next_obs, action, noise)
        return self.soft_targets(state, t, q, log_prob)

    def loss(
        self,
        critics: Ensemble,
        sample: Sample,
        target: Array,
        key: Array | None = None,
        *,
        trust: Trust | None,
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[N, B]` of its actions."""
        t = sample.transition
        q = ensembles.apply_ensemble(self.critic, critics, t.obs, t.action, key)
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, trust), q

    def normalised(
        self, critics: Ensemble, state: SACState, t: Transition, key: Array
    ) -> tuple[Array, Array, Ensemble]:
        """Return Q-values `[N, B]` under batch normalisation, targets `[B]` and new statistics.

        Without target networks, current and next observations and actions are normalised together,
        in one forward pass (Bhatt et al. 2024, Sec. 3.1).
        """
        evaluate = functools.partial(
            ensembles.apply_learning, self.critic, critics, key=self.noise(key, 1)
        )
        if self.config.target_network:
            q, statistics = evaluate(t.obs, t.action)
            return q, self.targets(state, t, key), statistics
        dist = self.policy(state.actor, t.next_obs)
        action, log_prob = distributions.sample_and_log_prob(dist, key)
        pairs = jax.tree.map(lambda *x: jnp.concatenate(x), (t.obs, t.action), (t.next_obs, action))
        q, statistics = evaluate(*pairs)
        q, next_q = jnp.split(q, 2, axis=1)
        members = self.members(key)
        next_q = next_q if members is None else next_q[members]
        target = jax.lax.stop_gradient(self.soft_targets(state, t, next_q, log_prob))
        return q, target, statistics

    def improve_critics(
        self, state: SACState, sample: Sample, key: Array, trust: Trust | None
    ) -> tuple[SACState, Info, Sample]:
        """Take a gradient step on the critics; also return the batch for the actor."""
        target_key = jax.random.split(key)[0]
        t, chosen, statistics = sample.transition, sample, state.critics
        params = ensembles.trainable(state.critics)
        if self.config.batch_renorm:

            def renormalised_loss(params: Ensemble) -> tuple[Array, Any]:
                critics = ensembles.with_statistics(params, state.critics)
                q, target, statistics = self.normalised(critics, state, t, target_key)
                losses = self.objective.losses(target - q)
                return self.objective.critic(losses, sample, None), (q, target, statistics)

            (value, aux), grads = jax.value_and_grad(renormalised_loss, has_aux=True)(params)
            q, target, statistics = aux
            info = critic_info(value, q, target, grads, self.combine)
        else:
            target = self.targets(state, t, target_key)
            critics = self.critics(state, target_key)
            loss = functools.partial(self.loss, trust=trust)
            grads, info, chosen = fit(loss, critics, sample, target, self.objective, key)
        params, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, params
        )
        critics = ensembles.with_statistics(params, statistics)
        return state._replace(critics=critics, critic_opt_state=critic_opt_state), info, chosen

    def improve_actor(
        self, state: SACState, sample: Sample, key: Array
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Take a gradient step on actor and temperature; return changed fields and metrics."""
        t = sample.transition

        def actor_loss(params: Params) -> tuple[Array, tuple[Array, Params]]:
            outputs, statistics = learning(self.actor, {**state.actor, **params}, t.obs)
            dist = distributions.from_outputs(outputs)
            action, log_prob = distributions.sample_and_log_prob(dist, key)
            q = ensembles.apply_ensemble(
                self.critic, state.critics, t.obs, action, self.noise(key, 1)
            )
            loss = jnp.exp(state.log_alpha) * log_prob - _REDUCE[self.config.actor_reduce](q, 0)
            loss = self.objective.actor(loss, sample, self.trust(dist, t))
            return loss, (log_prob, statistics)

        params = {"params": state.actor["params"]}
        (loss, (log_prob, statistics)), grads = jax.value_and_grad(actor_loss, has_aux=True)(params)
        grad = jax.grad(temperature_loss)(
            state.log_alpha, log_prob, self.target_entropy, self.config.alpha_loss
        )
        loss, grads, grad = common.averaged((loss, grads, grad))
        actor, actor_opt_state = common.descend(
            self.actor_optimiser, grads, state.actor_opt_state, params
        )
        log_alpha, alpha_opt_state = common.descend(
            self.alpha_optimiser, grad, state.alpha_opt_state, state.log_alpha
        )
        fields = {
            "actor": {**actor, **statistics},
            "log_alpha": log_alpha,
            "actor_opt_state": actor_opt_state,
            "alpha_opt_state": alpha_opt_state,
        }
        return fields, {"actor_loss": loss, "entropy": common.averaged(-log_prob.mean())}

    def update(self, state: SACState, sample: Sample, key: Array) -> tuple[SACState, Info]:
        actor_key = jax.random.split(key)[1]
        t, alpha = sample.transition, jnp.exp(state.log_alpha)
        common.require(
            not self.config.batch_renorm or len(t.reward) > 1,
            "batch_renorm needs batches of at least 2 transitions: use a larger batch size",
        )
        trust = self.trust(self.policy(state.actor, t.obs), t)
        state, info, chosen = self.improve_critics(state, sample, key, trust)
        state, metrics = self.delayed_actor(state, chosen, actor_key)
        info.metrics.update(metrics, alpha=alpha)
        if self.config.target_network:
            target_critics = common.soft_update(
                state.critics, state.target_critics, self.config.tau
            )
            state = state._replace(target_critics=target_critics)
        return self.reset(state, t, key), common.add_trust(info, trust)

    def delayed_actor(
        self, state: SACState, sample: Sample, key: Array
    ) -> tuple[SACState, dict[str, Array]]:
        """Update the actor if it is due; return the metrics of its latest update."""
        clock = state.clock
        if clock is None:
            fields, metrics = self.improve_actor(state, sample, key)
            return state._replace(**fields), metrics
        updates = counters.increment(clock.updates, self.config.period)
        kept = {
            name: getattr(state, name)
            for name in ("actor", "log_alpha", "actor_opt_state", "alpha_opt_state")
        }
        fields, metrics = jax.lax.cond(
            updates % self.config.policy_delay == 0,
            lambda: self.improve_actor(state, sample, key),
            lambda: (kept, clock.metrics),
        )
        return state._replace(**fields, clock=Clock(updates, metrics)), metrics

    def reset(self, state: SACState, t: Transition, key: Array) -> SACState:
        """Re-initialise the agent except for its clock, if a reset is due."""
        every = self.config.reset_every
        if every is None or state.clock is None:
            return state
        example = jax.tree.map(lambda x: x[0], (t.obs, t.action))
        key = jax.random.fold_in(key, 4)
        return cond_if_any(state.clock.updates % every == 0, self.fresh, state, key, *example)

    def fresh(self, state: SACState, key: Array, obs: Obs, action: Array) -> SACState:
        new = self.init(key, obs, action)._replace(clock=state.clock)
        return new if isinstance(state.critics, tuple) else ensembles.stack_pairs(new)

    def gradient(self, state: SACState, t: Transition, weights: Array, key: Array) -> Any:
        target = self.targets(state, t, key)
        return critic_gradient(self.critics(state, key), t, weights, target, self.objective)

    def feedback(self, state: SACState, t: Transition, key: Array) -> dict[str, Array]:
        trust = self.trust(self.policy(state.actor, t.obs), t)
        target = self.targets(state, t, key)
        feedback = critic_feedback(self.critics(state, key), t, target, self.objective)
        return feedback | common.trust_feedback(trust)


def _networks(config: SACConfig, size: int) -> tuple[Actor, Critic]:
    residual, warmup = config.network == "residual", None
    if config.batch_renorm:
        warmup = config.renorm_warmup
    of_actor = LayerOptions(warmup).layers()
    of_critic = LayerOptions(warmup, config.dropout, config.layer_norm).layers()
    actor = Actor(2 * size, config.hidden, "relu", *of_actor, residual)
    return actor, Critic(config.critic_hidden or config.hidden, "relu", *of_critic, residual)


def _check_objective(config: SACConfig, objective: Objective) -> None:
    requires = objective.requires
    common.require(
        config.target_network or "reducible_loss" not in requires.feedback,
        "reducible_loss compares critics with target networks, and target_network is false: use "
        "another replay method",
    )
    common.require(
        not config.batch_renorm
        or not (requires.density or objective.choose or "reducible_loss" in requires.feedback),
        "batch_renorm normalises by the whole batch, and this replay method needs a density, "
        "reducible_loss or a choice of candidates: use another replay method",
    )


def _before_tanh(dist: distributions.TanhNormal) -> Behaviour:
    return Behaviour(dist.mean, jnp.exp(2 * dist.log_std))


def sac(config: SACConfig, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a SAC agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects half the importance-weighted squared error.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or `config` does not support `objective`:
        with `batch_renorm`, objectives that require a density, `reducible_loss` or a choice of
        candidates; without target networks, objectives that require `reducible_loss`.
    """
    agent = _SAC(config, action_space, objective)
    made = Agent(
        agent.init, agent.act, agent.greedy, agent.update, agent.feedback, gradient=agent.gradient
    )
    return learn_weights(made, objective, action_space)
