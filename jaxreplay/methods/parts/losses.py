"""The losses that a method's `loss` option can name."""

from jaxreplay import objectives

LOSSES = ("agent", "mse", "huber", "l1")


def named_loss(name: str) -> objectives.Loss | None:
    """Return a loss by name; None, the agent's own, for "agent". "huber" has kappa 1.

    Raises:
      ValueError: there is no loss of that name.
    """
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}: use one of {', '.join(LOSSES)}")
    losses = {"mse": objectives.mse, "huber": objectives.huber(1.0), "l1": objectives.l1}
    return losses.get(name)
