"""Options that had another name when older runs were saved."""

from typing import Any


def up_to_date(config: Any) -> Any:
    """Return a saved configuration, nested plain values, under the names of this version."""
    sizes = config.get("sizes") if isinstance(config, dict) else None
    if not isinstance(sizes, dict) or "frames_on_host" not in sizes:
        return config
    rest = {name: value for name, value in sizes.items() if name != "frames_on_host"}
    replay_on = "host" if sizes["frames_on_host"] else "device"
    return {**config, "sizes": {**rest, "replay_on": replay_on}}
