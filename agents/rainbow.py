"""Rainbow: distributional DQN with noisy layers (Hessel et al. 2018).

Double Q-learning, dueling and noisy layers are options of the agent, as is the representation of
return distributions: C51, QR-DQN or IQN. Multi-step returns are an option of the training loop, and
prioritised replay is a replay method. For non-distributional DQN, see `agents.dqn`.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from agents import common, options
from agents.critics import VALUES, choose
from agents.dqn import DQNState
from agents.heads import Categorical, Head, ImplicitQuantiles, Quantiles
from agents.layers import dense
from agents.networks import Network, Obs, Params, QNetwork, apply, batch_of_one, rows
from agents.noisy import Noise, draw_noises, noisy, with_noise
from agents.types import Agent, Discrete, Info, Offers
from jaxreplay import counters, objectives
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.types import Array, Sample, Transition

OFFERS = Offers(VALUES, chooses=True)
_PAPER = "Hessel et al. 2018, Tab. 1"
_QR, _IQN = "Dabney et al. 2018a", "Dabney et al. 2018b"


@dataclasses.dataclass(frozen=True)
class RainbowConfig(Config):
    """Rainbow hyperparameters; the defaults suit small environments, such as CartPole.

    Epsilon-greedy exploration is used only if `noisy` is False. `experiments/runs/presets.toml`
    contains the published Atari settings.
    """

    double: bool = option(True, options.DOUBLE)
    dueling: bool = option(True, options.DUELING)
    noisy: bool = option(
        True, "explore with noisy layers instead of epsilon-greedy", "Fortunato et al. 2018"
    )
    sigma: float = option(
        0.1, "initial sigma of noisy layers times sqrt(inputs); 0.5 is common for Atari", above=0
    )
    head: Literal["c51", "quantile", "implicit"] = option(
        "c51",
        "return distribution: probabilities of atoms (c51), quantiles at fixed fractions "
        "(quantile: QR-DQN), or at drawn fractions (implicit: IQN)",
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
    quantiles: int = option(
        32,
        "number of quantiles of head 'quantile' (QR-DQN: 200), or of fractions that head "
        "'implicit' draws for each prediction and for each target (IQN: 64)",
        at_least=1,
    )
    averaged: int = option(
        32, "quantiles over which Q averages, for head 'implicit'", f"{_IQN}, Sec. 4", at_least=1
    )
    embedding: int = option(
        64, "cosines per embedded fraction, for head 'implicit'", f"{_IQN}, Eq. 4", at_least=1
    )
    kappa: float = option(1.0, "kappa of the quantile Huber loss", f"{_QR}; {_IQN}", above=0)
    priority: Literal["cross_entropy", "kl"] = option(
        "cross_entropy",
        "feedback td_error: the cross-entropy, as in the code of Oh et al. 2021, or the KL "
        "divergence, which subtracts the target entropy (Hessel et al. 2018); for quantiles, "
        "cross_entropy selects the quantile Huber loss",
    )
    network: Network = option("auto", options.NETWORK)
    hidden: tuple[int, ...] = option((128, 128), options.HIDDEN)
    optimiser: Literal["adam", "rmsprop"] = option("adam", options.OPTIMISER)
    learning_rate: float = option(5e-4, options.LEARNING_RATE)
    adam_eps: float = option(1.5e-4, options.ADAM_EPS, _PAPER)
    rmsprop_decay: float = option(0.95, options.RMSPROP_DECAY)
    rmsprop_eps: float = option(1e-5, options.RMSPROP_EPS)
    rmsprop_eps_in_root: bool = option(False, options.RMSPROP_EPS_IN_ROOT)
    max_grad_norm: float = option(10.0, options.MAX_GRAD_NORM)
    target_every: int = option(200, options.TARGET_EVERY)
    epsilon_start: float = option(1.0, options.EPSILON_START)
    epsilon_end: float = option(0.05, options.EPSILON_END)
    epsilon_updates: int = option(10_000, options.EPSILON_UPDATES)

    def check(self) -> None:
        """Raise ValueError unless `v_min` is less than `v_max`, and the priority fits the head."""
        if self.head != "c51" and self.priority == "kl":
            raise ValueError(
                f"priority 'kl' requires probabilities of atoms, got head '{self.head}', which has "
                f"quantiles: use priority 'cross_entropy', or head 'c51'"
            )
        if not self.v_min < self.v_max:
            raise ValueError(
                f"v_min must be less than v_max, got v_min {self.v_min} and v_max {self.v_max}"
            )

    def make_head(self) -> Head:
        """Create the representation of return distributions."""
        if self.head == "c51":
            support = jnp.linspace(self.v_min, self.v_max, self.atoms)  # [m], ascending
            return Categorical(support, self.priority == "kl")
        if self.head == "quantile":
            return Quantiles(self.kappa)
        return ImplicitQuantiles(self.kappa, self.quantiles, self.averaged)

    def make_network(self, num_actions: int) -> QNetwork:
        """Create the network, whose outputs are `[B, num_actions, m]`."""
        outputs = {"c51": self.atoms, "quantile": self.quantiles, "implicit": None}[self.head]
        layer = noisy(self.sigma) if self.noisy else dense
        return QNetwork(
            num_actions, self.network, self.hidden, self.dueling, outputs, layer, self.embedding
        )


class Draws(NamedTuple):
    """Random numbers that an update draws for its predictions."""

    noise: Noise | None  # noise of the online network's noisy layers; None without noisy layers
    fractions: Array | None  # [B, N], at which head "implicit" predicts quantiles; otherwise None


class _Rainbow:
    """Implementation of Rainbow."""

    def __init__(self, config: RainbowConfig, space: Discrete, objective: Objective | None) -> None:
        common.check_arguments("Rainbow", space, Discrete, objective, OFFERS)
        self.config, self.objective = config, objective or objectives.weighted()
        self.num_actions = space.n
        self.network, self.head = config.make_network(space.n), config.make_head()
        self.optimiser = common.q_optimiser(config)
        self.epsilon = common.epsilon_schedule(config)

    def init(self, key: Array, obs: Obs, _action: Array) -> DQNState:
        params = self.network.init(key, batch_of_one(obs), self.head.grid(1))
        updates = jnp.zeros((), jnp.int32)
        return DQNState(params, params, self.optimiser.init(params), updates)

    def noises(self, params: Params, key: Array, count: int) -> Noise | None:
        """Draw `count` noise samples, arrays `[count, ...]`; None without noisy layers."""
        return draw_noises(params, key, count) if self.config.noisy else None

    def outputs(
        self, params: Params, obs: Obs, noise: Noise | None, fractions: Array | None
    ) -> Array:
        params = params if noise is None else with_noise(params, noise)
        return apply(self.network, params, obs, fractions)  # [B, n, m]

    def best(self, params: Params, obs: Obs, noise: Noise | None) -> Array:
        outputs = self.outputs(params, obs, noise, self.head.grid(rows(obs)))
        return jnp.argmax(self.head.mean(outputs), axis=-1).astype(jnp.int32)

    def greedy(self, state: DQNState, obs: Obs) -> Array:
        return self.best(state.params, obs, None)

    def act(self, state: DQNState, obs: Obs, key: Array, _: Any = None) -> tuple[Array, None]:
        if self.config.noisy:  # independent noise per environment
            noises = self.noises(state.params, key, rows(obs))
            best = jax.vmap(self.best, in_axes=(None, 0, 0))
            single = jax.tree.map(lambda x: x[:, None], obs)
            return best(state.params, single, noises)[:, 0], None
        epsilon = self.epsilon(state.updates)
        return common.epsilon_greedy(self.greedy(state, obs), key, epsilon, self.num_actions), None

    def targets(
        self,
        state: DQNState,
        t: Transition,
        select: Noise | None,
        evaluate: Noise | None,
        fractions: Array | None,
    ) -> Array:
        """Return target distributions `[B, m]`, as m probabilities or quantiles each.

        `select` and `evaluate` are noise for the online and the target network. `fractions` are
        those of the implicit head (IQN), at which it evaluates quantiles, and None for other heads.
        """
        outputs = self.outputs(state.target_params, t.next_obs, evaluate, fractions)
        if self.config.double:
            action = self.best(state.params, t.next_obs, select)
        elif fractions is None:
            action = jnp.argmax(self.head.mean(outputs), axis=-1)
        else:
            action = self.best(state.target_params, t.next_obs, evaluate)
        return self.head.move(common.batched_index(outputs, action), t.reward, t.discount)

    def prepare(self, state: DQNState, t: Transition, key: Array) -> tuple[Array, Draws]:
        """Return target distributions `[B, m]`, and the `Draws` for the predictions.

        Predictions, next-action selection and next-action evaluation use independent noise
        (Fortunato et al. 2018, Sec. 3.1).
        """
        noises = self.noises(state.params, key, 3)
        learn, select, evaluate = (jax.tree.map(lambda x, i=i: x[i], noises) for i in range(3))
        predicted, aimed = self.head.draw(key, t.reward.shape[0])
        return self.targets(state, t, select, evaluate, aimed), Draws(learn, predicted)

    def errors(
        self, params: Params, t: Transition, target: Array, draws: Draws
    ) -> tuple[Array, Array]:
        """Return losses `[B]` and expected returns `[B]` for the stored actions."""
        outputs = self.outputs(params, t.obs, *draws)
        taken = common.batched_index(outputs, t.action)  # [B, m]
        return self.head.loss(target, taken, draws.fractions), self.head.mean(taken)

    def gradient_norms(self, params: Params, t: Transition, target: Array, draws: Draws) -> Array:
        """Return norms `[B]` of gradients of losses with respect to the stored actions' outputs."""
        taken = common.batched_index(self.outputs(params, t.obs, *draws), t.action)
        return jnp.linalg.norm(self.head.gradient(target, taken, draws.fractions), axis=-1)

    def _feedback(self, error: Array, q: Array, target: Array) -> dict[str, Array]:
        error = self.head.priority(error, target)
        return {"td_error": error, "q_value": q, "target": self.head.mean_of_target(target)}

    def update(self, state: DQNState, sample: Sample, key: Array) -> tuple[DQNState, Info]:
        t, config = sample.transition, self.config
        target, draws = self.prepare(state, t, key)
        learned, learned_target, learned_draws = sample, target, draws
        if self.objective.choose is not None:
            norms = self.gradient_norms(state.params, t, target, draws)[None]
            ((rows, learned),), _ = choose(self.objective, norms, sample, key)
            learned_target = target[rows]
            if draws.fractions is not None:
                learned_draws = draws._replace(fractions=draws.fractions[rows])

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            error, q = self.errors(params, learned.transition, learned_target, learned_draws)
            return self.objective.critic(error, learned, None), (error, q)

        (value, (error, q)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        value, grads = common.averaged((value, grads))
        if self.objective.choose is not None:  # feedback is that of all candidates
            error, q = self.errors(state.params, t, target, draws)
        params, opt_state = common.descend(self.optimiser, grads, state.opt_state, state.params)
        updates = counters.increment(state.updates, config.target_every)
        target_params = common.periodic_update(
            params, state.target_params, updates, config.target_every
        )
        metrics = {
            "loss": value,
            "q_value": q.mean(),
            "grad_norm": common.global_norm(grads),
            **self.head.metrics(target),
        }
        if not config.noisy:
            metrics["epsilon"] = jnp.asarray(self.epsilon(updates), jnp.float32)
        info = Info(self._feedback(error, q, target), metrics)
        return DQNState(params, target_params, opt_state, updates), info

    def feedback(self, state: DQNState, t: Transition, key: Array) -> dict[str, Array]:
        target, draws = self.prepare(state, t, key)
        return self._feedback(*self.errors(state.params, t, target, draws), target)


def rainbow(
    config: RainbowConfig, action_space: Discrete, objective: Objective | None = None
) -> Agent:
    """Create a Rainbow agent.

    The feedback `td_error` is the non-negative unweighted cross-entropy or KL divergence, depending
    on `config.priority`. For quantiles, it is the quantile Huber loss, as in Toromanoff et al.
    2019. The feedback `q_value` is the mean of the predicted distribution for the stored action,
    and `target` is the mean of the target distribution; IQN averages over the drawn fractions.
    Noise is sampled for each step of each environment, and three times per update; `greedy` uses
    the mean weights.

    Args:
      config: hyperparameters.
      action_space: action space of the environment.
      objective: replay method's objective; None selects the importance-weighted loss.

    Raises:
      ValueError: If `action_space` is not `Discrete`, or if `objective` sets a loss on TD errors or
        requires an action density.
    """
    agent = _Rainbow(config, action_space, objective)
    return Agent(agent.init, agent.act, agent.greedy, agent.update, agent.feedback)
