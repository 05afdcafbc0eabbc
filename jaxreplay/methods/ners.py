"""Neural experience replay sampler, NERS (Oh, Lee, Shin, Yang & Hwang 2021)."""

import dataclasses
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import optax

from jaxreplay import buffer, counters, objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.loops import if_finite
from jaxreplay.methods import options, proportional
from jaxreplay.methods.parts import episodes
from jaxreplay.methods.parts.episodes import Positions
from jaxreplay.methods.parts.score_network import Features, ScoreNetwork
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState, importance_weights
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field

Feature = Literal["obs", "action", "reward", "next_obs", "time", "td_error", "q_value"]
_PAPER = "Oh et al. 2021"
_CODE = "authors' code"


@dataclasses.dataclass(frozen=True)
class NERSConfig(Config):
    """Hyperparameters of NERS, mostly from PER or the authors' code; the paper gives no values.

    To weight the actor's loss as in Alg. 1 of the paper, set `weigh_actor=True`.
    """

    alpha: float = option(
        0.6, "exponent of the scores; 0 is uniform", "Schaul et al. 2016, Tab. 3", at_least=0
    )
    reward: Literal["evaluation", "training"] = option(
        "evaluation",
        "episode returns that reward the sampler: from evaluation (NERS) or training (NERS*)",
        f"{_PAPER}, Eq. 6 and Sec. 3.3",
    )
    gradient: Literal["buffer", "none"] = option(
        "buffer",
        "gradient of log probabilities normalised over the buffer (buffer), or of log scores "
        "(none: authors' code)",
        f"{_PAPER}, Eq. 7",
    )
    features: tuple[Feature, ...] = option(
        get_args(Feature), "inputs of the score network", f"{_PAPER}, Sec. 2.2"
    )
    global_context: bool = option(
        True, "condition scores on an average over the batch", f"{_PAPER}, Sec. 2.2 and Fig. 4a"
    )
    time_feature: Literal["run", "episode"] = option(
        "run", "input 'time': time in the run, in (0, 1], or step in the episode (authors' code)"
    )
    squash: bool = option(False, "apply tanh to all features, not only TD error and Q value", _CODE)
    hidden: tuple[int, ...] = option(
        (128, 256, 128, 64), "layer sizes of the local and global networks", _CODE, at_least=1
    )
    score_hidden: tuple[int, ...] = option(
        (128, 64), "hidden layer sizes of the score network", _CODE, at_least=1
    )
    learning_rate: float = option(1e-4, "Adam learning rate of the sampler", _CODE, above=0)
    train_size: int = option(256, "replayed transitions per update of the sampler", at_least=1)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.4, options.BETA)
    beta_end: float = option(1.0, options.BETA_END)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: options.Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights; their exponent beta is constant if `beta_updates` is None."""
        return importance_weights(self)


class Collected(NamedTuple):
    """A uniform reservoir sample of the transitions replayed since the latest gradient step.

    Each replayed transition receives a random number, its ticket; those with the n smallest
    tickets are retained.
    """

    slots: Array  # [n] int32
    versions: Array  # [n] int32, `Sample.version` of each transition when replayed
    tickets: Array  # [n] float32, in [0, 1); 1 marks empty entries


class NERSState(NamedTuple):
    """The score network, its stored inputs, and the priorities computed from scores."""

    params: Any
    opt_state: optax.OptState
    priorities: ProportionalState  # priorities (tree leaves) are score^alpha
    # Values of each slot (`buffer.in_rows`) when last replayed; initially 1
    td_error: Buffer  # [R, 128] float32, tanh of the TD error
    q_value: Buffer  # [R, 128] float32, tanh of the critic's target
    positions: Positions | None  # None unless the option `time_feature` is "episode"
    collected: Collected
    has_observed: Array  # [] bool, whether `observe_return` has been called
    episode_return: Array  # [] float32, episode return at the latest call to `observe_return`
    replay_reward: Array  # [] float32, change in `episode_return` at that call
    learned: Array  # [] int32, number of gradient steps of the score network


def log_probabilities(scores: Array, counted: Array, alpha: float, rest: Array | float) -> Array:
    """Return the log probabilities of transitions, `[n]` (Oh et al. 2021, Eq. 1 and 7).

    Transition i has probability `p_i = sigma_i^alpha / (sum_k sigma_k^alpha + rest)`.

    Args:
      scores: `[n]` float32, sigma_i in (0, 1).
      counted: `[n]` bool, mask of the terms in the sum over k; False for repeated transitions.
      alpha: exponent of the scores.
      rest: `[]`, sum of sigma^alpha over all other transitions in the buffer, a constant.
    """
    total = jnp.where(counted, scores**alpha, 0.0).sum() + rest
    return alpha * jnp.log(scores) - jnp.log(total)


@dataclasses.dataclass(frozen=True)
class NERS(Sampler):
    """Samples with `P(i) ~ score^alpha`, where a network computes the scores (Oh et al. 2021).

    New transitions have a score of 1. After each agent update, the network computes the scores of
    all transitions in the batch jointly. After each observed episode return, one REINFORCE step
    makes the recently replayed transitions more likely if the return increased, and less likely if
    it decreased (Eq. 6 and 7).
    """

    needs_whole = "its network compares all transitions of a batch"

    config: NERSConfig = NERSConfig()

    @property
    def requires(self) -> Requirements:
        fields = set(self.config.features) - {"time", "td_error", "q_value"}
        first = {"first"} if self.config.time_feature == "episode" else set()
        return Requirements(
            feedback=frozenset({"td_error", "target"}),
            episode_returns="training" if self.config.reward == "training" else "evaluation",
            transition_fields=frozenset(fields | first),
        )

    def init(self, key: Array, ring: Ring) -> NERSState:
        config, ones = self.config, buffer.in_rows(jnp.ones(ring.capacity, jnp.float32))
        blank = ring_.gather(ring, jnp.zeros(1, jnp.int32))
        scalar = jnp.zeros(1)
        params = _network(config).init(key, _features(config, blank, scalar, scalar, scalar))
        return NERSState(
            params=params,
            opt_state=_optimiser(config).init(params),
            priorities=proportional.init(ring.capacity, normalise=config.normalise),
            td_error=ones,
            q_value=ones,
            positions=episodes.init_positions(ring) if config.time_feature == "episode" else None,
            collected=_empty(self.config.train_size),
            has_observed=jnp.zeros((), bool),
            episode_return=jnp.zeros((), jnp.float32),
            replay_reward=jnp.zeros((), jnp.float32),
            learned=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: NERSState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> NERSState:
        ones = jnp.ones(slots.shape, jnp.float32)
        positions = state.positions
        if positions is not None:
            positions = episodes.add_positions(positions, slots, get_field(transition, "first"))
        return state._replace(
            priorities=proportional.insert(state.priorities, slots),
            td_error=buffer.write_elements(state.td_error, slots, ones),
            q_value=buffer.write_elements(state.q_value, slots, ones),
            positions=positions,
        )

    def sample(self, state: NERSState, ring: Ring, key: Array, batch_size: int) -> Draw:
        key_draw, key_ticket = jax.random.split(key)
        slots, chance = proportional.draw(
            state.priorities, ring, key_draw, batch_size, self.config.sampling
        )
        weights = proportional.weights(self.config.weight, state.priorities, ring, chance)
        tickets = jax.random.uniform(key_ticket, (batch_size,), jnp.float32)
        return Draw(slots, weights, tickets, chance)

    def update(self, state: NERSState, ring: Ring, sample: Sample, **feedback: Array) -> NERSState:
        """Score a batch, and add it to the reservoir sample `collected`."""
        slots, valid = sample.indices, sample.indices != IGNORED
        td_error, q_value = jnp.tanh(feedback["td_error"]), jnp.tanh(feedback["target"])
        time = _time(state, ring, jnp.minimum(slots, ring.capacity - 1))
        features = _features(self.config, sample.transition, time, td_error, q_value)
        scores = _scores(self.config, state.params, features, valid)
        return state._replace(
            priorities=proportional.write(state.priorities, slots, scores**self.config.alpha),
            td_error=buffer.write_elements(state.td_error, slots, td_error),
            q_value=buffer.write_elements(state.q_value, slots, q_value),
            collected=_collect(state.collected, sample, valid),
        )

    def observe_return(
        self, state: NERSState, ring: Ring, episode_return: Array, key: Array
    ) -> NERSState:
        # The first call only stores an episode return, to which the next call is compared.
        reward = jnp.where(state.has_observed, episode_return - state.episode_return, 0.0)
        learns = jnp.isfinite(reward) & (reward != 0)
        params, opt_state = jax.lax.cond(
            learns,
            lambda: _learn(self.config, state, ring, reward),
            lambda: (state.params, state.opt_state),
        )
        learns &= opt_state.finite
        return state._replace(
            params=params,
            opt_state=opt_state,
            collected=_empty(self.config.train_size),
            has_observed=jnp.ones((), bool),
            episode_return=episode_return,
            replay_reward=jnp.where(jnp.isfinite(reward), reward, 0.0),
            learned=counters.saturating_add(state.learned, learns),
        )

    def end_episodes(self, state: NERSState, ring: Ring) -> NERSState:
        positions = None if state.positions is None else episodes.end_positions(state.positions)
        return state._replace(positions=positions)

    def probability(self, state: NERSState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots)

    def metrics(self, state: NERSState, ring: Ring) -> dict[str, Array]:
        metrics = proportional.metrics(state.priorities, ring)
        return metrics | {
            "beta": self.config.weight.exponent(state.priorities.updates),
            "replay_reward": state.replay_reward,
            "sampler_updates": state.learned.astype(jnp.float32),
        }


sampler = NERS


def method(config: NERSConfig = NERSConfig()) -> Method:
    """Return NERS: the sampler, and an objective that averages importance-weighted critic losses.

    The training loop must pass the episode returns selected by `config.reward` to
    `Replay.observe_return`.

    Args:
      config: options; `config.for_run(updates)` anneals beta over `updates` gradient steps.
    """
    return Method(
        sampler(config), objectives.weighted(objectives.named(config.loss), config.weigh_actor)
    )


def _learn(
    config: NERSConfig, state: NERSState, ring: Ring, reward: Array
) -> tuple[Any, optax.OptState]:
    """Return the parameters and optimiser state after one REINFORCE step.

    The step uses the collected transitions that have not been overwritten.
    """
    slots = state.collected.slots
    valid = state.collected.tickets < 1
    valid &= ring_.version(ring, slots) == state.collected.versions
    again = jnp.tril((slots[:, None] == slots) & valid, -1).any(axis=1)
    counted = valid & ~again
    features = _features(
        config,
        ring_.gather(ring, slots),
        _time(state, ring, slots),
        buffer.read_elements(state.td_error, slots),
        buffer.read_elements(state.q_value, slots),
    )
    tree = state.priorities.tree
    counted_sum = jnp.where(counted, sum_tree.get(tree, slots), 0.0).sum()
    rest = jnp.maximum(sum_tree.total(tree) - counted_sum, 0.0)

    def loss(params: Any) -> Array:
        scores = _scores(config, params, features, valid)
        if config.gradient == "buffer":
            terms = log_probabilities(scores, counted, config.alpha, rest)
        else:
            terms = jnp.log(scores + 1e-6) / jnp.maximum(valid.sum(), 1)
        return -reward * jnp.where(valid, terms, 0.0).sum()

    steps, opt_state = _optimiser(config).update(jax.grad(loss)(state.params), state.opt_state)
    return optax.apply_updates(state.params, steps), opt_state


def _network(config: NERSConfig) -> ScoreNetwork:
    return ScoreNetwork(config.hidden, config.score_hidden, config.global_context, config.squash)


def _optimiser(config: NERSConfig) -> optax.GradientTransformation:
    return if_finite(optax.adam(config.learning_rate))


def _scores(config: NERSConfig, params: Any, features: Features, valid: Array) -> Array:
    return cast(Array, _network(config).apply(params, features, valid))


def _time(state: NERSState, ring: Ring, slots: Array) -> Array:
    if state.positions is not None:
        return state.positions.steps[slots].astype(jnp.float32)
    return ring_.time(ring, slots)


def _features(
    config: NERSConfig, transition: Tree, time: Array, td_error: Array, q_value: Array
) -> Features:
    """Return the network inputs; `td_error` and `q_value` `[m]` are already squashed by tanh."""
    count = len(time)
    estimates = {"time": time, "td_error": td_error, "q_value": q_value}

    def column(name: str) -> Array:
        values = estimates[name] if name in estimates else get_field(transition, name)
        return values.astype(jnp.float32).reshape(count, -1)

    for name in sorted({"obs", "next_obs"} & set(config.features)):
        if not hasattr(get_field(transition, name), "shape"):
            raise ValueError(
                f"{name} must be a single array to be an input of the score network, got a pytree; "
                f"remove '{name}' from the option features of ners"
            )
    scalars = ("action", "reward", *estimates)
    columns = [column(name) for name in scalars if name in config.features]
    return Features(
        obs=get_field(transition, "obs") if "obs" in config.features else None,
        next_obs=get_field(transition, "next_obs") if "next_obs" in config.features else None,
        scalars=jnp.concatenate(columns, axis=1) if columns else jnp.zeros((count, 0)),
    )


def _empty(count: int) -> Collected:
    slots, versions = jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32)
    return Collected(slots, versions, jnp.ones(count, jnp.float32))


def _collect(collected: Collected, sample: Sample, valid: Array) -> Collected:
    """Add a batch with tickets `sample.aux`, and retain the entries with the smallest tickets."""
    tickets = jnp.concatenate([collected.tickets, jnp.where(valid, sample.aux, 1.0)])
    slots = jnp.concatenate([collected.slots, jnp.where(valid, sample.indices, 0)])
    versions = jnp.concatenate([collected.versions, sample.version])
    kept = jax.lax.top_k(-tickets, collected.tickets.size)[1]
    return Collected(slots[kept], versions[kept], tickets[kept])
