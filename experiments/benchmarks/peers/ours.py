"""This project's own replay: proportional prioritisation and uniform draws."""

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
    """Return the two buffers that others are compared with."""
    return (
        Peer(PRIORITISED, prioritised=True, replay=_per),
        Peer(UNIFORM, prioritised=False, replay=_uniform),
    )
