"""Assertions on error messages: types, names and values, but not wording."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


def assert_names(text: str, *parts: object) -> None:
    """Assert that a text contains every part: names, values or commands, in any order."""
    missing = [part for part in map(str, parts) if not _contains(text, part)]
    assert not missing, f"{missing} missing from: {text}"


@contextmanager
def refused(
    *parts: object, error: type[BaseException] | tuple[type[BaseException], ...] = ValueError
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Assert that the block raises `error` with one line that contains every part."""
    with pytest.raises(error) as raised:
        yield raised
    message = str(raised.value)
    assert message and "\n" not in message.strip(), f"expected one line: {message}"
    assert_names(message, *parts)


def refusal(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], object], *words: object
) -> str:
    """Return the last error line of a command, after asserting exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and error.isprintable()
    return error


def _contains(text: str, part: str) -> bool:
    # "128" does not contain the name "8", nor does `batch_size` contain `size`.
    before = r"(?<!\w)" if part[:1].isalnum() else ""
    after = r"(?!\w)" if part[-1:].isalnum() else ""
    return re.search(before + re.escape(part) + after, text) is not None
