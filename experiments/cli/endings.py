"""How a command ends where nothing else handles it: an output that is cut off, Ctrl-C early on, or
settings with which JAX can't start.

`python -m experiments.papers list | head` closes the command's output before it has written all;
SIGPIPE stays ignored, as Python has it, for a run must not die of what merely reads its lines.
"""

import atexit
import contextlib
import os
import select
import signal
import sys
from types import FrameType, TracebackType

CUT_OFF, INTERRUPTED, REFUSED = 141, 130, 2  # exit codes, as shells and argparse give them
STOPPED = "stopped where nothing had to be saved"


def install() -> None:
    """Let this process end without a traceback in these cases."""
    sys.excepthook = _end
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, _interrupt)
    atexit.register(_let_go)


def is_cut_off() -> bool:
    """Tell whether nobody reads the standard output, or the errors, any more."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt as ever, or end at once while the command's imports are at work.

    An exception would come out of whatever is being imported: some of it aborts, or swallows it.
    """
    if hasattr(sys.modules["__main__"], "main"):  # it is defined below the imports
        signal.default_int_handler(number, frame)
    os.write(2, STOPPED.encode() + b"\n")
    os._exit(INTERRUPTED)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with an exit code instead of a traceback where that says all; `sys.excepthook`."""
    if issubclass(kind, BrokenPipeError) and is_cut_off():
        raise SystemExit(CUT_OFF)
    if issubclass(kind, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            print(STOPPED, file=sys.stderr)
        raise SystemExit(INTERRUPTED)
    if issubclass(kind, Exception) and (why := _cannot_start(error)):
        print(f"error: {why}", file=sys.stderr)
        raise SystemExit(REFUSED)
    sys.__excepthook__(kind, error, trace)


def _cannot_start(error: BaseException) -> str | None:
    """Say with which settings of the environment JAX can't start, if that is why a command failed.

    JAX reads some as it is imported and others when it is first used, and raises errors of any
    type and text.
    """
    try:
        import jax

        jax.devices()
    except Exception:
        own = [name for name in os.environ if name.startswith("JAX_") or name == "XLA_FLAGS"]
        told = ", ".join(f"{name}={os.environ[name]}" for name in sorted(own))
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return f"JAX can't start with {told or 'its defaults'} ({what}): change or unset these"
    return None


def _let_go() -> None:
    """Write what is left to the output, or to nowhere: Python would complain as it ends."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed from the start
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
