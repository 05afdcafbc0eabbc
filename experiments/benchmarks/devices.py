"""What a benchmark runs on, chosen before JAX computes anything."""

import dataclasses

import jax

from experiments.installation.accelerator import describe
from jaxreplay.option import Config, option

DEVICES = ("cpu", "gpu", "tpu")
HELP = "what JAX runs on; none: what it chooses itself"


@dataclasses.dataclass(frozen=True)
class OnDevice(Config):
    """The option of every benchmark that is configured by a dataclass."""

    device: str | None = option(None, HELP, choices=DEVICES)


def use(name: str | None) -> None:
    """Let JAX run on a kind of device.

    Args:
      name: one of DEVICES; None: what JAX chooses.

    Raises:
      ValueError: in one line: there is none, or JAX can't use it.
    """
    if name is None:
        return
    before = jax.config.jax_platforms
    # On a GPU or TPU, JAX finds out by itself which of its plugins to use.
    jax.config.update("jax_platforms", "cpu" if name == "cpu" else "")
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        raise ValueError(f"device {name}: {' '.join(str(error).split())}") from None
    if found != name:
        jax.config.update("jax_platforms", before)
        raise ValueError(
            f"device is {name}: JAX finds none here ({describe(jax.local_devices())}); "
            "use another, or install JAX for it"
        )
