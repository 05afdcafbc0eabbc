"""Replay methods of the papers that the library is built around, one module per method.

In each module, `method(config)` returns the method, and `sampler(config)` returns only its sampler.
`METHODS` maps method names to configs and factories. To write a custom method, define a frozen
dataclass of options and a function `method(config)` that returns a `jaxreplay.Method`. `register`
adds the method to `METHODS`; commands also accept the dotted name of its module. To extend the
library, add a module to `jaxreplay.contrib`.
"""

from jaxreplay.methods import (
    ere,
    ero,
    her,
    lap,
    latest,
    ners,
    options,
    pal,
    parts,
    per,
    proportional,
    pser,
    rank,
    refer,
    sequences,
    slices,
    uniform,
    windows,
)
from jaxreplay.methods._registry import METHODS, MakeMethod, MethodEntry, register

__all__ = [
    "METHODS", "MakeMethod", "MethodEntry", "ere", "ero", "her", "lap", "latest", "ners",
    "options", "pal", "parts", "per", "proportional", "pser", "rank", "refer", "register",
    "sequences", "slices", "uniform", "windows",
]  # fmt: skip

register("uniform", uniform.UniformConfig, uniform.method)
register("per", per.PERConfig, per.method)
register("rank", rank.RankConfig, rank.method)
register("pser", pser.PSERConfig, pser.method)
register("lap", lap.LAPConfig, lap.method, lap.DISCRETE)
register("pal", pal.PALConfig, pal.method, pal.DISCRETE)
register("ere", ere.EREConfig, ere.method)
register("ero", ero.EROConfig, ero.method)
register("ners", ners.NERSConfig, ners.method)
register("refer", refer.ReFERConfig, refer.method)
register("windows", windows.WindowsConfig, windows.method)
register("latest", latest.LatestConfig, latest.method)
register("her", her.HERConfig, her.method)
register("sequences", sequences.SequencesConfig, sequences.method)
register("slices", slices.SlicesConfig, slices.method)
