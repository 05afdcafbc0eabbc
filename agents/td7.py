"""TD7: TD3 with LAP and learned embeddings of states and actions (Fujimoto et al. 2023)."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import common, options, sale
from agents.critics import CRITIC_OFFERS, Critics, critic_feedback, fit
from agents.ensembles import apply_ensemble, init_ensemble, map_members, member
from agents.learned_weights import learn_weights
from agents.networks import Obs, Params, apply, batch_of_one
from agents.sale import Embedded, Encoder
from agents.td3 import clipped_double_q_target, explore, smooth
from agents.types import Agent, Continuous, Info
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = CRITIC_OFFERS
_PAPER = "Fujimoto et al. 2023"


@dataclasses.dataclass(frozen=True)
class TD7Config(Config):
    """TD7 hyperparameters; this agent has no checkpoints."""

    target_noise: float = option(0.2, options.TARGET_NOISE)
    target_noise_clip: float = option(0.5, options.TARGET_NOISE_CLIP)
    policy_delay: int = option(2, options.POLICY_DELAY)
    embedding: int = option(256, "size of the embeddings", _PAPER, at_least=1)
    hidden: tuple[int, ...] = option((256, 256), options.HIDDEN_OF_ALL, options.TWINS)
    actor_learning_rate: float = option(3e-4, options.ACTOR_LEARNING_RATE, options.TWINS)
    critic_learning_rate: float = option(3e-4, options.CRITIC_LEARNING_RATE, options.TWINS)
    encoder_learning_rate: float = option(
        3e-4, "Adam learning rate for the encoder", _PAPER, above=0, at_most=10
    )
    target_every: int = option(
        250, "updates between copies to target networks and fixed encoders", _PAPER, at_least=1
    )
    exploration_noise: float = option(0.1, options.EXPLORATION_NOISE)


class Networks(NamedTuple):
    """Policy, critics, and the encoder whose embeddings they read."""

    actor: Params
    critics: tuple[Params, Params]
    encoder: Encoder


class Lagged(NamedTuple):
    """A target critic, and the encoder whose embeddings it reads."""

    critic: Params
    encoder: Encoder


class TD7State(NamedTuple):
    """TD7 agent state."""

    networks: Networks  # with the fixed encoder
    targets: Networks  # with the fixed target encoder
    encoder: Encoder  # the one that learns
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    encoder_opt_state: optax.OptState
    bounds: Array  # [2] float32, bounds on Q in targets: `seen` at the latest copy
    seen: Array  # [2] float32, the least and the largest target so far
    actor_loss: Array  # [] float32, at the latest actor update
    updates: Array  # [] int32, update count for the delays


def widen(seen: Array, target: Array, learned: Array) -> Array:
    """Return the least and largest target `[2]`: the range `seen`, extended by targets `[B]`.

    A target counts if it is finite and `learned`, `[B]` bool, is True for its transition.
    """
    learned &= jnp.isfinite(target)
    least = target.min(where=learned, initial=seen[0])
    return jnp.stack([least, target.max(where=learned, initial=seen[1])])


class _TD7:
    """Implementation of TD7."""

    def __init__(self, config: TD7Config, space: Continuous, objective: Objective | None) -> None:
        common.check_arguments("TD7", space, Continuous, objective, OFFERS)
        self.config, self.objective = (
            config,
            common.with_default_loss(objective, objectives.huber()),
        )
        self.encoder = sale.ELUNetwork((*config.hidden, config.embedding))
        self.actor = sale.EmbeddedActor(space.size, config.hidden)
        self.critic = sale.EmbeddedCritic(config.hidden)
        self.encode = functools.partial(sale.encode, self.encoder)
        self.embed = functools.partial(sale.embed, self.encoder)
        self.with_pair = functools.partial(sale.with_pair, self.encoder)
        self.actor_optimiser = optax.adam(config.actor_learning_rate)
        self.critic_optimiser = optax.adam(config.critic_learning_rate)
        self.encoder_optimiser = optax.adam(config.encoder_learning_rate)
        self.period = math.lcm(config.policy_delay, config.target_every)

    def init(self, key: Array, obs: Obs, action: Array) -> TD7State:
        encoder_key, actor_key, critic_key = jax.random.split(key, 3)
        obs, action = batch_of_one((obs, action))
        encoder = sale.init_encoder(self.encoder, encoder_key, obs, action)
        inputs = self.embed(encoder, obs, action)
        actor = self.actor.init(actor_key, inputs)
        critics = init_ensemble(self.critic, critic_key, inputs, action, 2)
        networks, zero = Networks(actor, critics, encoder), jnp.zeros((), jnp.float32)
        return TD7State(
            networks=networks,
            targets=networks,
            encoder=encoder,
            actor_opt_state=self.actor_optimiser.init(actor),
            critic_opt_state=self.critic_optimiser.init(critics),
            encoder_opt_state=self.encoder_optimiser.init(encoder),
            bounds=jnp.zeros(2, jnp.float32),
            seen=jnp.array([jnp.inf, -jnp.inf], jnp.float32),
            actor_loss=zero,
            updates=jnp.zeros((), jnp.int32),
        )

    def policy(self, actor: Params, obs: Embedded) -> Array:
        return jnp.tanh(apply(self.actor, actor, obs))

    def greedy(self, state: TD7State, obs: Obs) -> Array:
        networks = state.networks
        return self.policy(networks.actor, Embedded(obs, self.encode(networks.encoder.state, obs)))

    def act(self, state: TD7State, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        return explore(self.greedy(state, obs), key, self.config.exploration_noise), None

    def value(self, params: Params | Lagged, t: Transition) -> Array:
        """Return Q-values `[B]` for transitions with embedded observations."""
        if isinstance(params, Lagged):
            obs: Any = t.obs
            t = t._replace(obs=self.embed(params.encoder, obs.obs, t.action))
            params = params.critic
        return apply(self.critic, params, t.obs, t.action)

    def critics(self, state: TD7State) -> Critics:
        targets = state.targets
        lagged = tuple(Lagged(member(targets.critics, n), targets.encoder) for n in range(2))
        return Critics(self.value, state.networks.critics, lagged)

    def embedded(self, state: TD7State, t: Transition) -> Transition:
        """Return transitions with the fixed encoder's embeddings of their observations."""
        return t._replace(obs=self.embed(state.networks.encoder, t.obs, t.action))

    def targets(self, state: TD7State, t: Transition, key: Array) -> Array:
        actor, critics, encoder = state.targets
        obs = Embedded(t.next_obs, self.encode(encoder.state, t.next_obs))
        noise, bound = self.config.target_noise, self.config.target_noise_clip
        action = smooth(self.policy(actor, obs), key, noise, bound)
        q = apply_ensemble(self.critic, critics, self.with_pair(encoder, obs, action), action)
        q = jnp.clip(q, *state.bounds)
        return jax.vmap(clipped_double_q_target, in_axes=(1, 0, 0))(q, t.reward, t.discount)

    def loss(
        self, params: tuple[Params, Params], sample: Sample, target: Array
    ) -> tuple[Array, Array]:
        """Return the loss `[]` of a batch and the Q-values `[N, B]` of its actions."""
        q = map_members(lambda critic: self.value(critic, sample.transition), params)
        td_error = target - q
        return self.objective.critic(self.objective.losses(td_error), sample, None), q

    def learn_encoder(
        self, state: TD7State, sample: Sample
    ) -> tuple[Encoder, optax.OptState, Array]:
        """Apply one gradient step on the loss of z_sa as a prediction of the next z_s."""
        t, obs = sample.transition, sample.transition.obs.obs

        def loss_of(params: Encoder) -> Array:
            predicted = self.embed(params, obs, t.action).pair
            following = jax.lax.stop_gradient(self.encode(params.state, t.next_obs))
            loss = jnp.square(predicted - following).mean(axis=-1)
            return self.objective.critic(loss, sample, None)

        loss, grads = jax.value_and_grad(loss_of)(state.encoder)
        learned = common.descend(
            self.encoder_optimiser, grads, state.encoder_opt_state, state.encoder
        )
        return *learned, loss

    def improve_policy(
        self, networks: Networks, opt_state: optax.OptState, sample: Sample
    ) -> tuple[Params, optax.OptState, Array]:
        """Apply one gradient step of the actor on the mean of both critics."""
        obs = sample.transition.obs

        def loss_of(params: Params) -> Array:
            action = self.policy(params, obs)
            inputs = self.with_pair(networks.encoder, obs, action)
            q = apply_ensemble(self.critic, networks.critics, inputs, action)
            return self.objective.actor(-q.mean(axis=0), sample, None)

        loss, grads = jax.value_and_grad(loss_of)(networks.actor)
        return *common.descend(self.actor_optimiser, grads, opt_state, networks.actor), loss

    def update(self, state: TD7State, sample: Sample, key: Array) -> tuple[TD7State, Info]:
        t, config = sample.transition, self.config
        target = self.targets(state, t, key)
        seen = widen(state.seen, target, sample.weights > 0)
        sample = sample._replace(transition=self.embedded(state, t))
        grads, info, chosen = fit(
            self.loss, self.critics(state), sample, target, self.objective, key
        )
        critics, critic_opt_state = common.descend(
            self.critic_optimiser, grads, state.critic_opt_state, state.networks.critics
        )
        encoder, encoder_opt_state, encoder_loss = self.learn_encoder(state, chosen)
        networks = state.networks._replace(critics=critics)
        updates = counters.increment(state.updates, self.period)
        actor, actor_opt_state, actor_loss = jax.lax.cond(
            updates % config.policy_delay == 0,
            lambda: self.improve_policy(networks, state.actor_opt_state, chosen),
            lambda: (networks.actor, state.actor_opt_state, state.actor_loss),
        )
        networks = networks._replace(actor=actor)
        networks, targets, bounds = jax.lax.cond(
            updates % config.target_every == 0,
            lambda: (
                networks._replace(encoder=encoder),
                networks,
                jnp.where(seen[0] <= seen[1], seen, state.bounds),
            ),
            lambda: (networks, state.targets, state.bounds),
        )
        info.metrics.update(actor_loss=actor_loss, encoder_loss=encoder_loss)
        return TD7State(
            networks, targets, encoder, actor_opt_state, critic_opt_state, encoder_opt_state,
            bounds, seen, actor_loss, updates,
        ), info  # fmt: skip

    def feedback(self, state: TD7State, t: Transition, key: Array) -> dict[str, Array]:
        target = self.targets(state, t, key)
        return critic_feedback(self.critics(state), self.embedded(state, t), target, self.objective)


def td7(config: TD7Config, action_space: Continuous, objective: Objective | None = None) -> Agent:
    """Create a TD7 agent.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects importance-weighted Huber losses. Its
        weights also apply to the encoder's loss; its loss on TD errors applies only to the critics.

    Raises:
      ValueError: If `action_space` is not `Continuous`, or if `objective` requires an action
        density.
    """
    agent = _TD7(config, action_space, objective)
    made = Agent(
        agent.init, agent.act, agent.greedy, agent.update, agent.feedback, loss=objectives.huber()
    )
    return learn_weights(made, objective, action_space)
