"""Options that had another name when older runs were saved."""

from typing import Any


def up_to_date(config: Any) -> Any:
    """Return a saved configuration, nested plain values, under the names of this version."""
    if not isinstance(config, dict):
        return config
    sizes, options = config.get("sizes"), config.get("replay_options")
    if isinstance(sizes, dict) and "frames_on_host" in sizes:
        rest = {name: value for name, value in sizes.items() if name != "frames_on_host"}
        replay_on = "host" if sizes["frames_on_host"] else "device"
        config = {**config, "sizes": {**rest, "replay_on": replay_on}}
    if config.get("replay") == "ners" and isinstance(options, dict) and "clock" in options:
        renamed = {"time_feature" if name == "clock" else name: x for name, x in options.items()}
        config = {**config, "replay_options": renamed}
    return config
