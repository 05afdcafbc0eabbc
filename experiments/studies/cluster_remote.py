"""Code that runs on cluster nodes: a check of a node, and the progress notes of running batches.

Ray serializes this module by value so that it also runs on nodes without this package. Its top
level must therefore not import the package.
"""

from collections.abc import Sequence
from typing import Any

import ray


def look(packages: Sequence[str]) -> dict[str, Any]:
    """Return a node's code, versions and hardware, or only "lacks" with a failed import."""
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
    """Actor that holds the progress of batches and their latest saved states.

    It runs on the node that started the sweep, so it lives as long as the sweep. A batch that
    restarts after the death of its node reports the same progress again, since its numbers are the
    same.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._began: dict[int, int] = {}
        self._left: dict[int, tuple[int, Any, Any]] = {}

    def begin(self, batch: int) -> tuple[int, tuple[int, Any, Any] | None]:
        """Count a start of a batch; return the count and the values saved by `leave`."""
        self._began[batch] = self._began.get(batch, 0) + 1
        self._steps[batch] = self._left[batch][0] if batch in self._left else 0
        return self._began[batch], self._left.get(batch)

    def tell(self, batch: int, steps: int) -> None:
        """Record the agent steps that each run of a batch has taken."""
        self._steps[batch] = steps

    def leave(self, batch: int, steps: int, progress: Any, state: Any) -> None:
        """Save steps, progress and state of a batch in the object store, which spills to disk."""
        self._left[batch] = (steps, progress, ray.put(state))

    def forget(self, batch: int) -> None:
        """Delete the notes of a batch that has ended."""
        for notes in (self._steps, self._began, self._left):
            notes.pop(batch, None)

    def read(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the agent steps and the number of starts of every running batch."""
        return self._steps, self._began
