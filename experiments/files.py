"""Files that are written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)
