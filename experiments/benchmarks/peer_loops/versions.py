"""Which version of a peer is used."""

import hashlib
import subprocess
from importlib import metadata
from pathlib import Path


def version_of(package: str, folder: Path | None) -> str:
    """Return the commit of a checkout, or else a digest of its sources; or the version installed.

    Args:
      package: its name, for import and for pip.
      folder: the checkout; None: it is installed.
    """
    if folder is None:
        return metadata.version(package)
    if (folder / ".git").exists():
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode == 0:
            return f"commit {told.stdout.strip()}"
    digest = hashlib.sha256()
    for path in sorted((folder / package).rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"
