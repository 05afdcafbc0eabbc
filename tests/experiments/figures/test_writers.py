"""Atomic file writers, which neither follow nor replace links."""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxreplay as jr
from experiments.benchmarks import command
from experiments.figures import film, style
from experiments.figures.film import Film
from experiments.papers import blocks
from experiments.report import page
from experiments.storage import files
from jaxreplay.methods import uniform
from tests.refusals import refused

REPLAY = jr.Replay(uniform.sampler(), capacity=2, batch_size=1)


def filmed(path: Path) -> None:
    pictures = Film()
    pictures.add(np.zeros((4, 4, 3), np.uint8))
    pictures.write(path, 5)


def saved(path: Path, **how: bool) -> None:
    state = REPLAY.init(jax.random.key(0), {"x": jnp.zeros(())})
    jr.save(REPLAY, state, path, **how)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.json": lambda path: files.write_json(path, {}),
    "b.json": lambda path: command.numbers(str(path)),
    "a.png": lambda path: style.save(style.make_figure(1, 1), path),
    "b.png": lambda path: blocks.write(style.make_figure(1, 1), path),
    "a.gif": filmed,
    "b.gif": film.check_path,
    "a.html": page.check_path,
    "a.replay": saved,
    "b.replay": lambda path: saved(path, overwrite=True),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("target", ["a file", "nothing", "ours"])
def test_links_are_refused_by_every_writer(tmp_path, name, target):
    mine, path = tmp_path / "mine", tmp_path / name
    if target == "a file":
        mine.write_text("mine")
    elif target == "ours":
        WRITERS["a.replay"](mine)
    before = mine.read_bytes() if mine.exists() else None
    path.symlink_to(mine)
    with refused(name, "link", error=(ValueError, argparse.ArgumentTypeError)):
        WRITERS[name](path)
    assert path.is_symlink() and (mine.read_bytes() if mine.exists() else None) == before
    assert set(tmp_path.iterdir()) - {mine} == {path}


def test_film_writers_leave_neighbouring_files_unchanged(tmp_path):
    (tmp_path / ".a.unfinished.gif").write_text("mine")
    filmed(tmp_path / "a.gif")
    assert (tmp_path / ".a.unfinished.gif").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.unfinished.gif", "a.gif"]


def test_failed_writes_keep_the_previous_file(tmp_path):
    path = tmp_path / "a.txt"
    files.write_bytes(path, b"before")
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
