"""Files that are written whole or not at all."""

import json
import os
import re
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all, lists of numbers on one line."""
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text + "\n")
    os.replace(temporary, path)
