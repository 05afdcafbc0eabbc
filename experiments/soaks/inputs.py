"""Bad input, and what becomes of it: one clear line in time, or something worse."""

import contextlib
import importlib
import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from experiments.soaks.calls import Call
from experiments.soaks.command_lines import CommandLine

Class = Literal["good", "late", "traceback", "silent"]
LATE = 3.0  # seconds


class Outcome(NamedTuple):
    """What became of one bad input.

    * good: refused in one line, in time, and nothing in the folder has changed.
    * late: the same, but it took longer than `LATE`.
    * traceback: anything but one line, or another exit code.
    * silent: it went through, or a file was changed.
    """

    what: str
    found: Class
    said: str
    seconds: float


def command_line(line: CommandLine) -> Outcome:
    """Run a command in this process, as `python -m` would, and tell what became of it."""
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    out = folder / "out"
    line.prepare(out)
    before = _files(folder)
    module, *arguments = [str(out) if text == "OUT" else text for text in line.arguments]
    said, start, code = io.StringIO(), time.perf_counter(), 0
    broken = None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            with contextlib.chdir(folder):
                code = importlib.import_module(module).main(arguments)
        except SystemExit as error:
            code = error.code
        except BaseException as error:  # whatever it is, it should not have come so far
            broken = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    text = said.getvalue().replace(str(folder), "").strip()
    changed = _files(folder) != before
    shutil.rmtree(folder, ignore_errors=True)
    shown = " ".join(line.arguments)
    if broken is not None:
        return Outcome(shown, "traceback", broken, seconds)
    if code == 0 or changed:
        return Outcome(shown, "silent", text[-300:], seconds)
    if code != line.exit_code or text.count("\n") or not text.startswith("error: "):
        return Outcome(shown, "traceback", f"exit code {code}: {text[-300:]}", seconds)
    return Outcome(shown, "late" if seconds > LATE else "good", text, seconds)


def call(bad: Call) -> Outcome:
    """Make a call of the API and tell what became of it."""
    start = time.perf_counter()
    try:
        result = bad.function()
    except ValueError as error:
        # JAX adds a note of its own, below a rule, to what is raised while it traces.
        text = str(error).partition("\n-----")[0]
        seconds = time.perf_counter() - start
        clear = "\n" not in text and 10 < len(text) < 400
        return Outcome(bad.what, "good" if clear else "traceback", text, seconds)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Outcome(bad.what, "traceback", text, time.perf_counter() - start)
    return Outcome(bad.what, "silent", repr(result)[:200], time.perf_counter() - start)


def run(
    lines: Iterable[CommandLine],
    calls: Iterable[Call],
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Try every input; report each."""
    outcomes = []
    for outcome in (*map(command_line, lines), *map(call, calls)):
        report(outcome)
        outcomes.append(outcome)
    return outcomes


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
