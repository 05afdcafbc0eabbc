"""Replay methods, one module per method; `METHODS` maps method names to configs and factories.

To write a custom method, define a frozen dataclass of options and a function `method(config)` that
returns a `jaxreplay.Method`. `register` adds the method to `METHODS`; commands also accept the
dotted name of its module. To extend the library, add a module and an entry in `_METHODS`.

In each module of this package, `method(config)` returns the method, and `sampler(config)` returns
only its sampler. Both raise ValueError if `config` is not an instance of the module's config class.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from jaxreplay._internal.arguments import check_kind
from jaxreplay.methods import (
    cer,
    curious,
    discor,
    eper,
    ere,
    ero,
    faded,
    her,
    la3p,
    laber,
    lap,
    latest,
    masked,
    ners,
    pal,
    parts,
    per,
    proportional,
    pser,
    rank,
    reaper,
    refer,
    relo,
    reshuffled,
    reverse,
    sequences,
    sil,
    slices,
    uniform,
    windows,
)
from jaxreplay.option import check_entry
from jaxreplay.sampler import Method

__all__ = [
    "METHODS", "MakeMethod", "MethodEntry", "cer", "curious", "discor", "eper", "ere", "ero",
    "faded", "her", "la3p", "laber", "lap", "latest", "masked", "ners", "pal", "parts", "per",
    "proportional", "pser", "rank", "reaper", "refer", "register", "relo", "reshuffled", "reverse",
    "sequences", "sil", "slices", "uniform", "windows",
]  # fmt: skip


MakeMethod = Callable[[Any], Method]  # accepts an instance of the method's config class


class MethodEntry(NamedTuple):
    """The config class and the factory of a replay method."""

    config: type[Any]  # subclass of `Config`
    method: MakeMethod
    discrete: Mapping[str, Any] = MappingProxyType({})  # defaults that differ for discrete actions

    def defaults(self, actions: Literal["discrete", "continuous"]) -> Any:
        """Return a config with the defaults for discrete or continuous actions."""
        return self.config(**self.discrete) if actions == "discrete" else self.config()


_METHODS = {
    "uniform": MethodEntry(uniform.UniformConfig, uniform.method),
    "per": MethodEntry(per.PERConfig, per.method),
    "rank": MethodEntry(rank.RankConfig, rank.method),
    "pser": MethodEntry(pser.PSERConfig, pser.method),
    "lap": MethodEntry(lap.LAPConfig, lap.method, lap.DISCRETE),
    "pal": MethodEntry(pal.PALConfig, pal.method, pal.DISCRETE),
    "ere": MethodEntry(ere.EREConfig, ere.method),
    "ero": MethodEntry(ero.EROConfig, ero.method),
    "ners": MethodEntry(ners.NERSConfig, ners.method),
    "refer": MethodEntry(refer.ReFERConfig, refer.method),
    "windows": MethodEntry(windows.WindowsConfig, windows.method),
    "latest": MethodEntry(latest.LatestConfig, latest.method),
    "cer": MethodEntry(cer.CERConfig, cer.method),
    "reshuffled": MethodEntry(reshuffled.ReshuffledConfig, reshuffled.method),
    "faded": MethodEntry(faded.FadedConfig, faded.method, faded.DISCRETE),
    "curious": MethodEntry(curious.CuriousConfig, curious.method),
    "relo": MethodEntry(relo.ReLoConfig, relo.method),
    "laber": MethodEntry(laber.LaBERConfig, laber.method),
    "eper": MethodEntry(eper.EPERConfig, eper.method),
    "reverse": MethodEntry(reverse.ReverseConfig, reverse.method),
    "la3p": MethodEntry(la3p.LA3PConfig, la3p.method, la3p.DISCRETE),
    "reaper": MethodEntry(reaper.ReaPERConfig, reaper.method),
    "masked": MethodEntry(masked.MaskedConfig, masked.method),
    "her": MethodEntry(her.HERConfig, her.method),
    "sequences": MethodEntry(sequences.SequencesConfig, sequences.method),
    "slices": MethodEntry(slices.SlicesConfig, slices.method),
    "discor": MethodEntry(discor.DisCorConfig, discor.method),
    "sil": MethodEntry(sil.SILConfig, sil.method, sil.DISCRETE),
}
METHODS: Mapping[str, MethodEntry] = MappingProxyType(_METHODS)  # read-only; see `register`


def register(
    name: str,
    config: type[Any],
    method: MakeMethod,
    discrete: Mapping[str, Any] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> None:
    """Add a custom method to `METHODS` under a name that commands accept.

    Args:
      name: unique name of the method, a single word.
      config: frozen dataclass of `option` fields, each with a default.
      method: function `method(config) -> Method`.
      discrete: maps options whose defaults differ for discrete actions to these defaults.
      replace: whether to replace a method that is already registered under `name`, for example
        when a notebook cell is run again.

    Raises:
      ValueError: If `name` is already registered or not a single word, `config` is not a dataclass
        of options, `method` is not callable, or `discrete` contains invalid options or values.
    """
    check_entry(name, config, method)
    check_kind("replace", replace, bool)
    entry = MethodEntry(config, method, discrete)
    _check_discrete(entry)
    if not replace and METHODS.get(name, entry) != entry:
        raise ValueError(
            f"name '{name}' is already registered for another replay method; choose another name, "
            "or pass replace=True"
        )
    _METHODS[name] = entry


def _check_discrete(entry: MethodEntry) -> None:
    if not isinstance(entry.discrete, Mapping):
        raise ValueError(
            f"discrete must map options of {entry.config.__name__} to values, got "
            f"{entry.discrete!r}"
        )
    names = {field.name for field in dataclasses.fields(entry.config)}
    for name in sorted(set(entry.discrete) - names):
        raise ValueError(f"discrete must name options of {entry.config.__name__}, got '{name}'")
    entry.defaults("discrete")
