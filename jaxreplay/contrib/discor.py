"""Distribution correction, DisCor (Kumar, Gupta & Levine 2020): weights from accumulated errors.

A second network estimates how wrong the values at a transition are, as the discounted sum of
Bellman errors from this transition on. Transitions with wrong targets receive small weights.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxreplay import objectives
from jaxreplay.loops import if_finite
from jaxreplay.methods import options, uniform
from jaxreplay.objectives import LearnedWeights, LossName, ValueOf
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Sample, Tree, get_field

_PAPER = "Kumar et al. 2020"
_CODE = "third-party code"  # the authors' code was not available


@dataclasses.dataclass(frozen=True)
class DisCorConfig(Config):
    """Hyperparameters of DisCor."""

    temperature: float = option(
        10.0, "initial temperature of the weights, in units of errors", _CODE, above=0
    )
    rate: float = option(
        0.005,
        "rate at which the temperature follows the mean error; 0: constant temperature",
        _CODE,
        at_least=0,
        at_most=1,
    )
    least: float = option(
        1e-3, "lower bound on the temperature; the third-party code has none", above=0
    )
    nonnegative: bool = option(False, "count negative estimates of errors as 0", f"{_CODE}: false")
    learning_rate: float = option(
        3e-4, "Adam learning rate of the error network", _CODE, above=0, at_most=10
    )
    tau: float = option(
        0.005, "soft-update rate of the error network's target", _CODE, above=0, at_most=1
    )
    hidden: tuple[int, ...] = option(
        (256, 256, 256), "hidden layer sizes of the error network", _CODE, at_least=1
    )
    loss: LossName = option("agent", options.LOSS)


class DisCorState(NamedTuple):
    """State of the error network, part of the agent's state."""

    params: Tree  # of the error network
    target_params: Tree
    opt_state: optax.OptState
    temperature: Array  # [] float32
    error: Array  # [] float32, mean estimated error of the latest batch
    effective: Array  # [] float32, effective fraction of the latest batch, B / sum w^2


@dataclasses.dataclass(frozen=True)
class DistributionCorrection:
    """Learns the accumulated error Delta(s, a) of an agent's values, and weights transitions.

    The target of Delta is `|td| + discount * Delta'(s', a')`, for its target network Delta' and the
    agent's next action a' (Kumar et al. 2020, Eq. 6).
    """

    config: DisCorConfig = DisCorConfig()

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden layer sizes of the error network."""
        return self.config.hidden

    def init(self, params: Tree) -> DisCorState:
        """Return the initial state for parameters of an error network."""
        return DisCorState(
            params=params,
            target_params=params,
            opt_state=self._optimiser().init(params),
            temperature=jnp.asarray(self.config.temperature, jnp.float32),
            error=jnp.zeros((), jnp.float32),
            effective=jnp.ones((), jnp.float32),
        )

    def weights(
        self, state: DisCorState, value: ValueOf, sample: Sample, next_action: Array
    ) -> Array:
        """Return weights `[B]` with mean 1, which include the sampler's weights as factors."""
        errors = self._next_errors(state, value, sample, next_action)
        discount = get_field(sample.transition, "discount")
        return weights(errors, discount, state.temperature, sample.weights)

    def learn(
        self, state: DisCorState, value: ValueOf, sample: Sample, next_action: Array, td: Array
    ) -> DisCorState:
        """Take a gradient step on the squared error of Delta, with targets from TD errors `[B]`."""
        config, t = self.config, sample.transition
        errors = self._next_errors(state, value, sample, next_action)
        discount = get_field(t, "discount")
        target = jax.lax.stop_gradient(jnp.abs(td) + discount * errors)

        def loss(params: Tree) -> tuple[Array, Array]:
            predicted = value(params, get_field(t, "obs"), get_field(t, "action"))
            return jnp.square(predicted - target).mean(), predicted.mean()

        grads, mean = jax.grad(loss, has_aux=True)(state.params)
        steps, opt_state = self._optimiser().update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, steps)
        temperature = state.temperature + config.rate * (mean - state.temperature)
        shares = weights(errors, discount, state.temperature, sample.weights) / len(errors)
        return DisCorState(
            params=params,
            target_params=optax.incremental_update(params, state.target_params, config.tau),
            opt_state=opt_state,
            # A mean that is not finite would stay.
            temperature=jnp.where(
                jnp.isfinite(mean), jnp.maximum(temperature, config.least), state.temperature
            ),
            error=mean,
            effective=1.0 / (len(errors) * jnp.square(shares).sum()),
        )

    def metrics(self, state: DisCorState) -> dict[str, Array]:
        """Return the temperature, the mean error, and the effective batch size divided by B."""
        return {
            "error_temperature": state.temperature,
            "mean_error": state.error,
            "effective_weights": state.effective,
        }

    def _next_errors(
        self, state: DisCorState, value: ValueOf, sample: Sample, next_action: Array
    ) -> Array:
        errors = value(state.target_params, get_field(sample.transition, "next_obs"), next_action)
        return jnp.maximum(errors, 0.0) if self.config.nonnegative else errors

    def _optimiser(self) -> optax.GradientTransformation:
        return if_finite(optax.adam(self.config.learning_rate))


_LARGEST = 1e30  # so that differences are finite


def weights(errors: Array, discount: Array, temperature: Array, given: Array) -> Array:
    """Return weights `[B]` with mean 1, proportional to `given * exp(-discount * errors / T)`.

    Kumar et al. 2020, Eq. 8.

    Args:
      errors: `[B]`, accumulated errors at the next states.
      discount: `[B]`, 0 for terminal transitions.
      temperature: `[]`, T, positive.
      given: `[B]`, importance weights of the sampler.

    Example:
      >>> errors, discount = jnp.array([0.0, 4.0]), jnp.array([0.5, 0.5])
      >>> found = weights(errors, discount, jnp.float32(2 / jnp.log(3)), jnp.ones(2))
      >>> [round(float(x), 4) for x in found]
      [1.5, 0.5]
    """
    logits = jax.lax.stop_gradient(-discount * errors / temperature)
    # Errors may diverge, but weights must not: NaN counts as no error.
    logits = jnp.clip(jnp.nan_to_num(logits), -_LARGEST, _LARGEST)
    mass = given * jnp.exp(logits - logits.max())
    return len(errors) * mass / mass.sum()


sampler = uniform.sampler


def method(config: DisCorConfig = DisCorConfig()) -> Method:
    """Return DisCor: the sampler of uniform replay, and an objective that learns weights.

    The objective works with any sampler of single transitions. The learned weights are then
    multiplied by the sampler's importance weights, for example:

      >>> from jaxreplay.methods import per
      >>> both = Method(per.sampler(), method().objective)
    """
    objective = objectives.weighted(objectives.named(config.loss))
    learned: LearnedWeights = DistributionCorrection(config)
    return Method(sampler(), objective._replace(learned_weights=learned))
