"""This project's replay: proportional prioritisation and uniform draws."""

from experiments.benchmarks.peers.types import ALPHA, BETA, EPSILON, Peer
from jaxreplay.methods import per, uniform
from jaxreplay.replay import Replay

PRIORITISED, UNIFORM = "jaxreplay per", "jaxreplay uniform"


def _per(capacity: int, batch_size: int) -> Replay:
    config = per.PERConfig(alpha=ALPHA, beta=BETA, beta_end=BETA, epsilon=EPSILON)
    return Replay(per.sampler(config), capacity=capacity, batch_size=batch_size)


def _uniform(capacity: int, batch_size: int) -> Replay:
    return Replay(uniform.sampler(), capacity=capacity, batch_size=batch_size)


def peers() -> tuple[Peer, ...]:
    """Return the two references for prioritised and uniform peers."""
    return (
        Peer(PRIORITISED, prioritised=True, make=_per),
        Peer(UNIFORM, prioritised=False, make=_uniform),
    )
