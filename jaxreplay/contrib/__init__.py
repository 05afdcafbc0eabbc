"""Replay methods published since PER, one module per method.

In each module, `method(config)` returns the method, and `sampler(config)` returns only its sampler.
The methods are registered in `jaxreplay.methods.METHODS`. To add a method to the library, add a
module and a line below.
"""

from jaxreplay.contrib import (
    cer,
    curious,
    discor,
    eper,
    faded,
    fresh,
    geometric,
    la3p,
    laber,
    masked,
    reaper,
    refresh,
    relo,
    reshuffled,
    reverse,
    sil,
    uper,
)
from jaxreplay.methods import register
from jaxreplay.methods.per import PERConfig

__all__ = [
    "cer", "curious", "discor", "eper", "faded", "fresh", "geometric", "la3p", "laber", "masked",
    "reaper", "refresh", "relo", "reshuffled", "reverse", "sil", "uper",
]  # fmt: skip

register("cer", cer.CERConfig, cer.method)
register("reshuffled", reshuffled.ReshuffledConfig, reshuffled.method)
register("faded", faded.FadedConfig, faded.method, faded.DISCRETE)
register("curious", curious.CuriousConfig, curious.method)
register("relo", relo.ReLoConfig, relo.method)
register("laber", laber.LaBERConfig, laber.method)
register("eper", PERConfig, eper.method)
register("reverse", reverse.ReverseConfig, reverse.method)
register("la3p", la3p.LA3PConfig, la3p.method, la3p.DISCRETE)
register("reaper", reaper.ReaPERConfig, reaper.method)
register("masked", masked.MaskedConfig, masked.method)
register("discor", discor.DisCorConfig, discor.method)
register("sil", sil.SILConfig, sil.method, sil.DISCRETE)
register("geometric", geometric.GeometricConfig, geometric.method)
register("refresh", refresh.RefreshConfig, refresh.method)
register("fresh", fresh.FreshConfig, fresh.method)
register("uper", uper.UPERConfig, uper.method)
