"""What commands do with their process is theirs alone."""

import subprocess
import sys

import pytest

SAID = """
import gc, signal, sys
import experiments
print(sys.excepthook is sys.__excepthook__, gc.get_threshold()[0] == gc_before)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
BEFORE = "import gc; gc_before = gc.get_threshold()[0]"


@pytest.mark.parametrize("how", ["-c", "script", "-m"])
def test_who_imports_the_package_keeps_their_process(how, tmp_path, ctrl_c):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text(BEFORE + SAID)
    (package / "tool.py").write_text("")
    (tmp_path / "script.py").write_text("import mine")
    words = {"-c": ["-c", "import mine"], "script": ["script.py"], "-m": ["-m", "mine.tool"]}
    done = subprocess.run(
        [sys.executable, *words[how]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


def test_a_command_looks_for_garbage_seldom():
    code = (
        "import sys; sys.argv, sys.orig_argv = ['-m'], ['python', '-m', 'experiments.train']\n"
        "import gc, experiments; print(gc.get_threshold()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert int(done.stdout) >= 10_000
