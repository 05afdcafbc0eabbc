"""Returns estimated along stored trajectories: affine recursions backwards in time.

Every estimator here is `x_t = b_t + a_t x_{t+1}` with a_t = 0 where an episode ends, which an
associative scan solves in logarithmic depth. Arrays are `[T]` or `[T, E]`, time first. The reward
`reward[t]` is what the step from state t gave, `discount[t]` is gamma, or 0 if it terminated, and
`last[t]` tells that the step was its episode's last.
"""

import jax
import jax.numpy as jnp

from jaxreplay._internal.arguments import Bounds
from jaxreplay.types import Array


def recursion(decay: Array, term: Array, wrap: bool = False) -> Array:
    """Solve `x_t = term_t + decay_t x_{t+1}` backwards along the first axis.

    Args:
      decay: `[T, ...]`.
      term: `[T, ...]`.
      wrap: time runs round a ring, the last row being followed by the first; some decay of every
        column must be 0. Without it nothing follows the last row: its decay does not matter.

    Returns:
      x `[T, ...]`.
    """

    def after(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        decay, term = earlier
        # Not by multiplication alone: nothing may cross an episode's end, not even 0 x NaN.
        follows = [jnp.where(decay == 0, 0.0, decay * x) for x in later]
        return follows[0], term + follows[1]

    given = jnp.asarray(decay), jnp.asarray(term)
    decays, terms = jax.lax.associative_scan(after, given, reverse=True)
    # From the first row on, some decay is 0 before the ring closes: its own term is its solution.
    return terms + jnp.where(decays == 0, 0.0, decays * terms[:1]) if wrap else terms


def retrace(
    reward: Array,
    discount: Array,
    last: Array,
    value: Array,
    advantage: Array,
    next_value: Array,
    log_ratio: Array,
    wrap: bool = False,
) -> Array:
    """Return Retrace's estimates of Q(s_t, a_t) `[T, ...]` (Munos et al. 2016, lambda 1).

    `Q_t = r_t + d_t V_{t+1} + d_t min(1, rho_{t+1}) (Q_{t+1} - V_{t+1} - A_{t+1})`
    (Novati & Koumoutsakos 2019, Eq. 2), and `Q_t = r_t + d_t V(s_{t+1})` at an episode's last step.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, gamma, or 0 where the episode terminated.
      last: `[T, ...]` bool; also set it on the newest step of an unfinished episode.
      value: `[T, ...]`, V(s_t).
      advantage: `[T, ...]`, A(s_t, a_t).
      next_value: `[T, ...]`, V(s_{t+1}), read where `last`.
      log_ratio: `[T, ...]`, log pi(a_t|s_t) / mu(a_t|s_t).
      wrap: time runs round a ring; some `last` of every column must be set.
    """
    if not wrap:
        last = jnp.asarray(last).at[-1].set(True)
    trace = jnp.exp(jnp.minimum(log_ratio, 0.0))
    # Of the step after: what its value and the cut trace leave to the estimate that follows.
    kept = value - trace * (value + advantage)
    term = jnp.where(last, next_value, jnp.roll(kept, -1, axis=0))
    decay = jnp.where(last, 0.0, discount * jnp.roll(trace, -1, axis=0))
    return recursion(decay, reward + discount * term, wrap)


def trace_corrected_value(q_ret: Array, value: Array, advantage: Array, log_ratio: Array) -> Array:
    """Return `V_t + min(1, rho_t) (Qret_t - V_t - A_t)`, the target of V(s_t).

    Novati & Koumoutsakos 2019, Eq. 19; without advantages, on Retrace's estimates without
    advantages, this is V-trace with both clips at 1 (their Eq. 20; Espeholt et al. 2018, Eq. 1).
    """
    return value + jnp.exp(jnp.minimum(log_ratio, 0.0)) * (q_ret - value - advantage)


def vtrace(
    reward: Array,
    discount: Array,
    last: Array,
    value: Array,
    next_value: Array,
    log_ratio: Array,
) -> Array:
    """Return V-trace's targets of V(s_t) `[T, ...]`, both clips at 1; arguments as of `retrace`."""
    none = jnp.zeros_like(value)
    q_ret = retrace(reward, discount, last, value, none, next_value, log_ratio)
    return trace_corrected_value(q_ret, value, none, log_ratio)


def advantages(
    reward: Array, discount: Array, last: Array, value: Array, next_value: Array, decay: float
) -> Array:
    """Return generalised advantage estimates `[T, ...]` (Schulman et al. 2016, Eq. 16).

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, gamma, or 0 where the episode terminated.
      last: `[T, ...]` bool, terminated or truncated.
      value: `[T, ...]`, V(s_t).
      next_value: `[T, ...]`, V(s_{t+1}), of the true observation after the step.
      decay: lambda; 1 sums all TD errors to the episode's end, 0 takes the first alone.

    Raises:
      ValueError: `decay` lies outside of [0, 1].
    """
    Bounds(at_least=0, at_most=1).check("decay", decay)
    td = reward + discount * next_value - value
    return recursion(jnp.where(last, 0.0, decay * discount), td)
