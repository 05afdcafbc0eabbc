"""Write the address of the repository into all pages that name it: `python docs/address.py`.

The address is `Repository` in `[project.urls]` of pyproject.toml. Without one, the pages say how to
install from a clone. `docs/conf.py` reads it itself.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CLONE = ("# in a clone", "git clone {} jaxreplay && cd jaxreplay")
# Pattern, replacement without an address and with one.
PLACES = {
    "README.md": (r"^(# in a clone|git clone .*)$", *_CLONE),
    "docs/start.md": (r"^(# in a clone|git clone .*)$", *_CLONE),
    "notebooks/14_colab.ipynb": (
        r"pip install -q (jaxreplay-\*\.whl|git\+[^\\]+)",
        "pip install -q jaxreplay-*.whl",
        "pip install -q git+{}",
    ),
    "CITATION.cff": (
        r"^(repository-code: .*\n)?license",
        "license",
        "repository-code: {}\nlicense",
    ),
}


def address() -> str | None:
    """Return the address of the repository, or None if there is none yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository")


def filled(text: str, place: str, url: str | None) -> str:
    """Return the text of one of PLACES with an address, or without."""
    pattern, without, with_url = PLACES[place]
    line = without if url is None else with_url.format(url)
    return re.sub(pattern, lambda _: line, text, flags=re.MULTILINE)


if __name__ == "__main__":
    for place in PLACES:
        path = ROOT / place
        path.write_text(filled(path.read_text(), place, address()))
