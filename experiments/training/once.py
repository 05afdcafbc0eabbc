"""How to compile programs that run once: quickly."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.errors import JaxRuntimeError

# XLA's newer code for fusions makes a training step 4 to 25 % faster, but takes twice as long to
# compile. This leaves it out, where XLA can: versions of jaxlib from 0.11 on have no other.
_OPTIONS = {"xla_cpu_use_fusion_emitters": False}


def jit_once(function: Callable[..., Any], **arguments: Any) -> Any:
    """Jit a function that is called once, or seldom: on CPU, compiled in about half the time.

    That takes jaxlib 0.10; others compile it as `jax.jit` does. Its floating-point numbers may
    differ in their last bits from those of `jax.jit`, and like all functions with options of their
    own it can't be called within another jitted one.

    Args:
      function: what to compile.
      **arguments: of `jax.jit`.
    """
    return jax.jit(function, compiler_options=_options(), **arguments)


@functools.cache
def _options() -> dict[str, bool]:
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=_OPTIONS).lower().compile()
    except JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return {}
    return _OPTIONS
