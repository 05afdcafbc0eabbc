"""A command as its own process: signals, garbage collection, and output that no process reads.

Each command begins with `if __name__ == "__main__": process.run("experiments.NAME")`, above its
other imports. Nothing here affects programs that import a command, such as notebooks and tests.
Only the standard library is imported at the top, because other imports may fail or take seconds.
"""

import gc
import importlib
import os
import select
import signal
import sys
import threading
from typing import NoReturn

STOPPED = "stopped; there was nothing to save"
INTERRUPTED = 130  # exit code of shells after Ctrl-C


def run(name: str) -> NoReturn:
    """Import the module of a command, call its `main()` and exit with the code it returns."""
    os.environ["MPLBACKEND"] = "agg"  # figures are only written to files
    gc.set_threshold(50_000, 20, 20)  # most objects of imports and tracing live until the end
    for stream in filter(None, (sys.stdout, sys.stderr)):
        if stream.errors == "strict":  # otherwise, a name with foreign letters would end a run
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is signal.default_int_handler:  # some modules abort if importing them raises
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main = importlib.import_module(name).main
        signal.signal(signal.SIGINT, ctrl_c)
        code = main()
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:
        if (reason := _jax_failure(error)) is None:
            raise
        print(f"error: {reason}", file=sys.stderr)
        code = 2
    finally:
        discard_unread()
        gc.freeze()  # the interpreter collects garbage twice as it exits
    if any(thread.daemon for thread in threading.enumerate()) and code:  # still in a program of XLA
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)  # the interpreter would abort when such a thread returns
    sys.exit(code)


def discard_unread() -> bool:
    """Discard further output if its reader has ended, as in `COMMAND | head`.

    Returns:
      Whether the reader of the standard output or the standard error has ended.
    """
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    unread = [number for number, event in poll.poll(0) if event & select.POLLERR]
    for number in unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return bool(unread)


def _jax_failure(error: BaseException) -> str | None:
    """Return a message with the settings under which JAX cannot start, or None if JAX can start.

    JAX reads some settings at import and others at first use, and raises errors of various types.
    """
    try:
        import jax

        jax.devices()
    except Exception:
        names = [name for name in os.environ if name.startswith("JAX_") or name == "XLA_FLAGS"]
        settings = ", ".join(f"{name}={os.environ[name]}" for name in sorted(names))
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        return f"JAX cannot start with {settings or 'its defaults'} ({cause}): change or unset them"
    return None
