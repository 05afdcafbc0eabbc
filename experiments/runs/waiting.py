"""What is shown on a terminal while nothing can be counted: tracing, compiling, drawing."""

import contextlib
from collections.abc import Iterator
from typing import Any

from jax import monitoring
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# What JAX tells its listeners: a program is ready to be compiled, and it is compiled (or was kept).
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def waiting(what: str, then: str = "") -> Iterator[None]:
    """Show a spinner, what is waited for, and since when; nothing without a terminal.

    Args:
      what: is waited for, such as "per: compiling the training loop".
      then: what is waited for once JAX has compiled a program, until it compiles another.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # else results that are piped away would go to standard error
    )
    task = bar.add_task(what, total=None)

    def told(event: str, seconds: float, **about: Any) -> None:
        if event in (_LOWERED, _COMPILED):
            bar.update(task, description=what if event == _LOWERED else then or what)

    with contextlib.ExitStack() as stack:
        stack.enter_context(bar)
        monitoring.register_event_duration_secs_listener(told)
        stack.callback(monitoring.unregister_event_duration_listener, told)
        yield
