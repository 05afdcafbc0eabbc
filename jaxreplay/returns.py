"""Off-policy returns and advantages for stored trajectories.

Every estimator is a linear recursion `x_t = b_t + a_t x_{t+1}`, with a_t = 0 at the end of an
episode, and is computed by an associative scan with logarithmic depth. Arrays are time-major,
`[T, ...]`. For the step from state s_t to s_{t+1}, `reward[t]` is the reward, `discount[t]` is
gamma, or 0 if the step terminated the episode, and `last[t]` is whether it ended the episode.
"""

import jax
import jax.numpy as jnp

from jaxreplay._internal.arguments import Bounds
from jaxreplay.types import Array


def recursion(decay: Array, term: Array, wrap: bool = False) -> Array:
    """Solve `x_t = term_t + decay_t x_{t+1}` backwards along the first axis.

    NaN and infinity do not propagate across a decay of 0.

    Args:
      decay: factors `[T, ...]`. If `wrap` is True, every sequence must contain at least one 0.
      term: summands `[T, ...]`.
      wrap: whether time is circular, so t = 0 follows t = T - 1. If False, x_T is 0.

    Returns:
      x `[T, ...]`.

    Example:
      >>> recursion(jnp.array([0.5, 0.5, 0.0]), jnp.array([1.0, 1.0, 2.0])).tolist()
      [2.0, 2.0, 2.0]
    """

    def after(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        decay, term = earlier
        # 0 * NaN is NaN, so `where` is required to stop NaN at the end of an episode.
        follows = [jnp.where(decay == 0, 0.0, decay * x) for x in later]
        return follows[0], term + follows[1]

    elements = jnp.asarray(decay), jnp.asarray(term)
    decays, terms = jax.lax.associative_scan(after, elements, reverse=True)
    # With `wrap`, some decay is 0, so terms[0] equals x_0 and continues the recursion at T - 1.
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
    """Return Retrace estimates of Q(s_t, a_t), `[T, ...]` (Munos et al. 2016, lambda = 1).

    `Q_t = r_t + d_t V_{t+1} + d_t min(1, rho_{t+1}) (Q_{t+1} - V_{t+1} - A_{t+1})`
    (Novati & Koumoutsakos 2019, Eq. 2), and `Q_t = r_t + d_t V_{t+1}` at the last step of an
    episode, with rewards r, discounts d, values V, advantages A and importance ratios
    rho = pi / mu of the policy pi and the behaviour policy mu.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, gamma, or 0 if the episode terminated.
      last: `[T, ...]` bool; must also be True at the newest step of an unfinished episode.
      value: `[T, ...]`, V(s_t).
      advantage: `[T, ...]`, A(s_t, a_t).
      next_value: `[T, ...]`, V(s_{t+1}), read only if `last` is True.
      log_ratio: `[T, ...]`, log pi(a_t|s_t) / mu(a_t|s_t).
      wrap: whether time is circular, as in `recursion`. If True, `last` must be True at least once
        in every sequence. If False, `last` is assumed to be True at T - 1.
    """
    if not wrap:
        last = jnp.asarray(last).at[-1].set(True)
    trace = jnp.exp(jnp.minimum(log_ratio, 0.0))
    # Q_t = r_t + d_t (rest_{t+1} + trace_{t+1} Q_{t+1})
    rest = value - trace * (value + advantage)
    term = jnp.where(last, next_value, jnp.roll(rest, -1, axis=0))
    decay = jnp.where(last, 0.0, discount * jnp.roll(trace, -1, axis=0))
    return recursion(decay, reward + discount * term, wrap)


def trace_corrected_value(q_ret: Array, value: Array, advantage: Array, log_ratio: Array) -> Array:
    """Return targets for V(s_t), `V_t + min(1, rho_t) (Qret_t - V_t - A_t)`, `[T, ...]`.

    Qret denotes the estimates `q_ret`, and rho the ratio pi / mu (Novati & Koumoutsakos 2019, Eq.
    19). If all advantages are 0, including in `retrace`, the targets are those of V-trace with both
    clipping thresholds at 1 (their Eq. 20; Espeholt et al. 2018, Eq. 1).

    Args:
      q_ret: `[T, ...]`, Retrace estimates of Q(s_t, a_t).
      value: `[T, ...]`, V(s_t).
      advantage: `[T, ...]`, A(s_t, a_t).
      log_ratio: `[T, ...]`, log pi(a_t|s_t) / mu(a_t|s_t).
    """
    return value + jnp.exp(jnp.minimum(log_ratio, 0.0)) * (q_ret - value - advantage)


def vtrace(
    reward: Array, discount: Array, last: Array, value: Array, next_value: Array, log_ratio: Array
) -> Array:
    """Return V-trace targets for V(s_t), `[T, ...]`, with both clipping thresholds at 1.

    `v_t = V_t + min(1, rho_t) (r_t + d_t v_{t+1} - V_t)` (Espeholt et al. 2018, Eq. 1), with
    V_{t+1} in place of v_{t+1} at the last step of an episode. See `retrace` for the arguments.
    """
    zeros = jnp.zeros_like(value)
    q_ret = retrace(reward, discount, last, value, zeros, next_value, log_ratio)
    return trace_corrected_value(q_ret, value, zeros, log_ratio)


def advantages(
    reward: Array, discount: Array, last: Array, value: Array, next_value: Array, decay: float
) -> Array:
    """Return generalised advantage estimates (GAE), `[T, ...]` (Schulman et al. 2016, Eq. 16).

    `A_t = delta_t + lambda d_t A_{t+1}` with `delta_t = r_t + d_t V_{t+1} - V_t`, and
    `A_t = delta_t` at the last step of an episode.

    Args:
      reward, discount, last, value, next_value: as in `retrace`, but `next_value` is read at every
        step, and is the value of the observation before any reset.
      decay: lambda, in [0, 1]. 1 yields discounted returns minus V(s_t), and 0 yields one-step TD
        errors.

    Raises:
      ValueError: If `decay` is outside of [0, 1].
    """
    Bounds(at_least=0, at_most=1).check("decay", decay)
    td = reward + discount * next_value - value
    return recursion(jnp.where(last, 0.0, decay * discount), td)
