"""Pages of results: one HTML file with tables and figures, without scripts or other files.

Functions return HTML, in which markup and control characters of all texts are escaped. Pages are
functions of their content: equal results give equal bytes.
"""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.figures.drawing import Panel, to_svg
from experiments.figures.style import Style, Styles
from experiments.files.disk import read_bytes, write_bytes
from jaxreplay.saving import check_writable, printable

NAME = "report.html"
MARK = '<meta name="generator" content="jaxreplay experiments.report">'  # identifies pages
MOST_BYTES = 6_000_000  # limit for all films of a page together
NARROW, WIDE = (4.4, 3.0), (5.6, 3.6)  # size of a panel in inches
_BEGINNING = 1000  # number of bytes in which the mark must occur
_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_STYLE = Path(__file__).with_name("page.css")


class Head(NamedTuple):
    """The head of a page."""

    title: str
    facts: Sequence[tuple[str, str]]  # names and values
    warnings: Sequence[str]


class Section(NamedTuple):
    """A section of a page."""

    name: str  # target of links
    title: str
    intro: str
    blocks: Sequence[str]  # HTML of tables, lists and panels


def render(head: Head, sections: Iterable[Section | None]) -> str:
    """Return the HTML of a page of the sections that are not None."""
    shown = [section for section in sections if section is not None]
    title = _text(head.title)
    facts = (f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in head.facts)
    links = (f'<a href="#{section.name}">{_text(section.title)}</a>' for section in shown)
    parts = [
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{MARK}',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>\n{_STYLE.read_text(encoding='utf-8')}</style>",
        f"</head>\n<body>\n<h1>{title}</h1>\n<dl>{''.join(facts)}</dl>",
        bullets(head.warnings, "warnings") if head.warnings else "",
        f"<nav>{' '.join(links)}</nav>",
    ]
    for section in shown:
        parts.append(f'<section id="{section.name}">\n<h2>{_text(section.title)}</h2>')
        parts += [f"<p>{_text(section.intro)}</p>", *section.blocks, "</section>"]
    return "\n".join([*parts, "</body>\n</html>\n"])


def write(path: Path, content: str) -> str:
    """Write a page atomically; return one line with its path.

    Raises:
      ValueError: there is a file at the path that is not a page of results.
      OSError: the disk is full.
    """
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.encode())
    return f"report:  {path} ({len(content) / 1e6:.1f} MB)"


def check_path(path: Path) -> None:
    """Check that a page can be written to a path, without changing any file.

    Raises:
      ValueError: the suffix is wrong, or the path is a folder, a link or a file that is not a page.
    """
    if path.suffix != ".html":
        raise ValueError(f"{path} must end in .html")
    check_writable(path, "give the name of a file, or choose another --out")
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{above} is not a folder: choose another --out")
    if path.exists():
        with path.open("rb") as file:
            if MARK.encode() not in file.read(_BEGINNING):
                raise ValueError(f"{path} was not written by this command: choose another --out")


def has_section(path: Path, anchor: str) -> bool:
    """Return whether there is a page with a section of this anchor."""
    return path.exists() and f'<section id="{anchor}"'.encode() in path.read_bytes()


def table(cells: Sequence[Sequence[str]], caption: str = "", *, folded: bool = False) -> str:
    """Return a table whose first row is the header; `folded` hides the table below its caption."""
    header, *rows = cells
    named = f"<caption>{_text(caption)}</caption>" if caption and not folded else ""
    lines = [
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    ]
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in header)
    content = (
        f'<div class="scroll" tabindex="0"><table>{named}\n<thead><tr>{head}</tr></thead>\n'
        + "\n".join(["<tbody>", *lines])
        + "\n</tbody></table></div>"
    )
    if folded:
        return f"<details><summary>{_text(caption)}</summary>\n{content}\n</details>"
    return content


def bullets(lines: Sequence[str], kind: str = "") -> str:
    """Return an HTML list of lines, with the CSS class `kind`."""
    items = "\n".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="{kind}">\n{items}\n</ul>'


def code(line: str) -> str:
    """Return a command line as preformatted text."""
    return f'<pre tabindex="0">{_text(line)}</pre>'


def panels(
    drawn: Sequence[Panel | None],
    title: str = "",
    styles: Styles | None = None,
    size: tuple[float, float] = NARROW,
) -> str:
    """Return panels as SVG, beside each other where there is room.

    Args:
      drawn: panels; None is left out.
      title: heading, or "".
      styles: style of each label, for a legend of several labels.
      size: width and height of a panel in inches.
    """
    heading = f"<h3>{_text(title)}</h3>\n" if title else ""
    keys = [
        f"<span>{_swatch(style)} {_text(label)}</span>" for label, style in (styles or {}).items()
    ]
    legend = f'<div class="legend">{"".join(keys)}</div>\n' if len(keys) > 1 else ""
    figures = "\n".join(to_svg(panel, size) for panel in drawn if panel is not None)
    width = f"--width: {90 * size[0]:.0f}px"
    return f'{heading}{legend}<div class="panels" style="{width}">\n{figures}\n</div>'


def films(paths: Mapping[str, Path]) -> Section | None:
    """Return the section with videos of episodes, by label, of at most `MOST_BYTES` in total."""
    blocks, left_out, total = [], [], 0
    for label, path in paths.items():
        try:
            content = read_bytes(path)
        except ValueError as error:
            left_out.append(f"{label}: {error}")
            continue
        if not content.startswith(b"GIF8"):
            left_out.append(f"{label}: {path.name} is not a GIF")
        elif total + len(content) > MOST_BYTES:
            left_out.append(f"{label}: {path.name} has {len(content) / 1e6:.1f} MB")
        else:
            total += len(content)
            data, name = base64.b64encode(content).decode(), _text(label)
            image = f'<img src="data:image/gif;base64,{data}" alt="A film of an episode, {name}">'
            blocks.append(f"<figure>{image}<figcaption>{name}</figcaption></figure>")
    if not blocks and not left_out:
        return None
    intro = (
        f"Greedy episodes, as experiments.watch recorded them. A page holds at most "
        f"{MOST_BYTES / 1e6:g} MB of films; those left out are in the folders of their runs."
    )
    return Section("film", "An episode", intro, blocks + [bullets(left_out)] * bool(left_out))


def _swatch(style: Style) -> str:
    line = (
        f'stroke="{style["color"]}" stroke-width="{style["linewidth"]}" '
        f'stroke-dasharray="{_DASHES[style["linestyle"]]}"'
    )
    return f'<svg viewBox="0 0 30 10" aria-hidden="true"><path d="M1 5H29" {line}/></svg>'


def _text(text: str) -> str:
    return html.escape("\n".join(map(printable, text.split("\n"))))
