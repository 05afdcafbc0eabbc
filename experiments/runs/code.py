"""Which version of the code made a result: numbers of two versions are not compared unawares."""

import ast
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_DECIDING = (
    "jaxreplay/**/*.py",
    "agents/**/*.py",
    "experiments/environments/**/*.py",
    "experiments/training/**/*.py",
    "experiments/runs/assembly.py",
)


@functools.cache
def version(*more: str) -> str:
    """Return a digest of the sources that decide a run's numbers, comments and docstrings aside.

    Methods and agents of other packages are not part of it: all arms of a comparison share it.

    Args:
      *more: sources that decide besides those of a training run, as patterns below the repository,
        such as "experiments/papers/cliffwalk*.py".
    """
    digest = hashlib.sha256()
    for path in _sources(more):
        digest.update(path.relative_to(_ROOT).as_posix().encode())
        digest.update(_meaning(path))
    return digest.hexdigest()[:12]


def _sources(more: Sequence[str]) -> Iterator[Path]:
    for pattern in (*_DECIDING, *more):
        yield from sorted(_ROOT.glob(pattern))


@functools.cache  # versions with and without `more` share most files
def _meaning(path: Path) -> bytes:
    """Return what a source says to Python: its syntax tree without docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return ast.unparse(tree).encode()


def _is_text(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)
