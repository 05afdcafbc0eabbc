"""Versions of the code: what changes them, and what does not."""

import ast
import re

from experiments.runs import code


def test_comments_docstrings_and_layout_change_no_version(tmp_path):
    one, other, third = (tmp_path / f"{name}.py" for name in "abc")
    one.write_text('"""About."""\n\n\ndef double(x):\n    """Double."""\n    return 2 * x\n')
    other.write_text("def double(x):  # twice\n    'Other.'\n\n    return 2*x\n")
    third.write_text("def double(x):\n    return 3 * x\n")
    meanings = [code._meaning(path) for path in (one, other, third)]
    assert ast.parse(meanings[0])
    assert (
        meanings[0].replace(b"pass\n", b"").strip() == meanings[1].replace(b"pass\n", b"").strip()
    )
    assert b"3 * x" in meanings[2] and meanings[2] != meanings[0]


def test_the_version_is_of_all_sources_that_decide_numbers():
    names = [path.relative_to(code._ROOT).as_posix() for path in code._sources(())]
    assert "jaxreplay/methods/per.py" in names and "agents/dqn.py" in names
    assert not any(name.startswith(("tests/", "experiments/analysis")) for name in names)
    assert re.fullmatch("[0-9a-f]{12}", code.version())


def test_sources_beside_the_training_loop_give_a_version_of_their_own():
    walk = "experiments/papers/cliffwalk*.py"
    assert code.version(walk) == code.version(walk) != code.version()
    assert code.version("experiments/papers/nothing*.py") == code.version()
