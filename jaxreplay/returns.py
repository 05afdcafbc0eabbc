"""Off-policy returns and advantages along stored trajectories.

Every estimator is a linear recursion `x_t = b_t + a_t x_{t+1}` with a_t = 0 where an episode ends,
solved by an associative scan in logarithmic depth. Arrays are `[T, ...]`, time first: `reward[t]`
of the step from state s_t to s_{t+1}, `discount[t]`, gamma or 0 if the step terminated the episode,
and `last[t]`, whether it was the last step of its episode.
"""

import jax
import jax.numpy as jnp

from jaxreplay._internal.arguments import Bounds
from jaxreplay.types import Array


def recursion(decay: Array, term: Array, wrap: bool = False) -> Array:
    """Solve `x_t = term_t + decay_t x_{t+1}` backwards along the first axis.

    NaN and infinity do not propagate across a decay of 0.

    Args:
      decay: `[T, ...]`, a_t; with `wrap`, at least one must be 0 in every column.
      term: `[T, ...]`, b_t.
      wrap: whether time is a ring, in which t = 0 follows t = T - 1; otherwise x_T is 0.

    Returns:
      x `[T, ...]`.

    Example:
      >>> recursion(jnp.array([0.5, 0.5, 0.0]), jnp.array([1.0, 1.0, 2.0])).tolist()
      [2.0, 2.0, 2.0]
    """

    def after(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        decay, term = earlier
        # 0 * NaN is NaN: only `where` stops NaN at the end of an episode.
        follows = [jnp.where(decay == 0, 0.0, decay * x) for x in later]
        return follows[0], term + follows[1]

    elements = jnp.asarray(decay), jnp.asarray(term)
    decays, terms = jax.lax.associative_scan(after, elements, reverse=True)
    # Some decay after t = 0 is 0, so that terms[0] is x_0, with which the last recursion continues.
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
    episode, with rewards r, discounts d and importance ratios rho = pi / mu.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, gamma, or 0 where the episode terminated.
      last: `[T, ...]` bool; set it for the newest step of an unfinished episode, too.
      value: `[T, ...]`, V(s_t).
      advantage: `[T, ...]`, A(s_t, a_t).
      next_value: `[T, ...]`, V(s_{t+1}), read only where `last`.
      log_ratio: `[T, ...]`, log pi(a_t|s_t) / mu(a_t|s_t).
      wrap: whether time is a ring, as for `recursion`; `last` must be set at least once in every
        column. Otherwise the final step counts as a last one.
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
    """Return the target of V(s_t), `V_t + min(1, rho_t) (Qret_t - V_t - A_t)`, `[T, ...]`.

    Novati & Koumoutsakos 2019, Eq. 19. If all advantages are 0, here and in `retrace`, it is
    V-trace with both clips at 1 (their Eq. 20; Espeholt et al. 2018, Eq. 1).

    Args:
      q_ret: `[T, ...]`, Retrace estimates of Q(s_t, a_t).
      value: `[T, ...]`, V(s_t).
      advantage: `[T, ...]`, A(s_t, a_t).
      log_ratio: `[T, ...]`, log pi(a_t|s_t) / mu(a_t|s_t).
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
    """Return V-trace targets of V(s_t), `[T, ...]` (Espeholt et al. 2018, Eq. 1, both clips at 1).

    `v_t = V_t + min(1, rho_t) (r_t + d_t v_{t+1} - V_t)` within an episode, and with V_{t+1} in
    place of v_{t+1} at its last step. The arguments are those of `retrace`.
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
      reward: `[T, ...]`.
      discount: `[T, ...]`, gamma, or 0 where the episode terminated.
      last: `[T, ...]` bool, terminated or truncated.
      value: `[T, ...]`, V(s_t).
      next_value: `[T, ...]`, V(s_{t+1}), of the observation before a reset.
      decay: lambda; 1 gives discounted returns minus V(s_t), 0 one-step TD errors.

    Raises:
      ValueError: `decay` is outside of [0, 1].
    """
    Bounds(at_least=0, at_most=1).check("decay", decay)
    td = reward + discount * next_value - value
    return recursion(jnp.where(last, 0.0, decay * discount), td)
