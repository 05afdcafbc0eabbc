"""What nodes of a cluster are asked, and where running waves leave how far they have come.

Ray is given this module's source, not its name, so that it runs on nodes that lack this package:
it may import nothing of it at the top.
"""

from collections.abc import Sequence
from typing import Any

import ray


def look(packages: Sequence[str]) -> dict[str, Any]:
    """Tell what a node computes with; only "lacks", where something is missing."""
    from importlib import metadata

    try:
        import jax

        from experiments.runs import compilation
        from experiments.studies import devices, store
    except (ImportError, SystemExit) as error:
        return {"lacks": " ".join(str(error).split())}
    here = jax.local_devices()
    installed = {each.metadata["Name"].lower() for each in metadata.distributions()}
    return {
        "code": store.code_version(),
        "versions": {name: metadata.version(name) for name in packages if name in installed},
        "platform": here[0].platform,
        "kind": here[0].device_kind,
        "processor": compilation.processor(),
        "bytes": devices.free_bytes(here),
    }


class Notes:
    """How far waves have come, and their states at the latest log points that they left; an actor.

    It lies where the sweep was started, so that it is there as long as that is. A wave that begins
    anew after its node has died says the same again: what it computes is the same.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._began: dict[int, int] = {}
        self._left: dict[int, tuple[int, Any, Any]] = {}

    def begin(self, wave: int) -> tuple[int, tuple[int, Any, Any] | None]:
        """Note that a wave begins; return how often it has, and what it left, as `leave` had it."""
        self._began[wave] = self._began.get(wave, 0) + 1
        self._steps[wave] = self._left[wave][0] if wave in self._left else 0
        return self._began[wave], self._left.get(wave)

    def tell(self, wave: int, steps: int) -> None:
        """Note how many agent steps of each of its runs a wave has done."""
        self._steps[wave] = steps

    def leave(self, wave: int, steps: int, stand: Any, state: Any) -> None:
        """Keep a wave's agent steps, stand and state, in the object store, which spills to disk."""
        self._left[wave] = (steps, stand, ray.put(state))

    def forget(self, wave: int) -> None:
        """Forget a wave that has ended."""
        for notes in (self._steps, self._began, self._left):
            notes.pop(wave, None)

    def read(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return of every wave at work its agent steps, and how often it has begun."""
        return self._steps, self._began
