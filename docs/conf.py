"""How the pages in this folder become a site: `make docs`."""

import gc
import re
import sys
from importlib import metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "extensions"), str(DOCS)]

from address import address  # noqa: E402

# Pages are millions of small objects that last; looking for cycles took a quarter of the time.
gc.set_threshold(50_000, 20, 20)

project = "jaxreplay"
author = "the authors of jaxreplay"
release = metadata.version("jaxreplay")

extensions = [
    "myst_nb",  # includes myst_parser
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commented_fields",
    "docstring_markup",
    "mathml",
    "option_tables",
    "protocols",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # the notebooks contain their outputs
nb_merge_streams = True
exclude_patterns = ["extensions"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
math_number_all = False
html_math_renderer = "mathml"

default_role = "literal"  # docstrings quote code by single backticks
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "member-order": "bysource",
    "special-members": "__call__",
}
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
add_module_names = False
maximum_signature_line_length = 72
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style")]
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"jaxreplay {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options: dict = {"footer_icons": []}
if source := address():
    html_theme_options |= {
        "source_repository": source, "source_branch": "main", "source_directory": "docs/",
    }  # fmt: skip
highlight_language = "none"  # of blocks that name none: commands
pygments_style = "default"
pygments_dark_style = "github-dark"


def setup(app) -> None:
    """Write the pages of results, copy the notebooks, link pages, expand `modules`."""
    app.connect("builder-inited", _write_results)
    app.connect("builder-inited", _copy_notebooks)
    app.connect("include-read", _link_pages)
    app.connect("source-read", _link_notebooks)
    app.connect("source-read", _document_modules)


def _write_results(app) -> None:
    from experiments.papers.committed import COMMITTED
    from experiments.papers.entry import PAPERS
    from experiments.papers.summary import page

    for paper in PAPERS:
        path = DOCS / "results" / f"{paper}.md"
        text = page(paper, "small", COMMITTED, path.parent)
        if not path.exists() or path.read_text() != text:  # else its page is not built again
            path.write_text(text)


def _copy_notebooks(app) -> None:
    (DOCS / "notebooks").mkdir(exist_ok=True)
    for path in sorted((DOCS.parent / "notebooks").glob("*.ipynb")):
        copy = DOCS / "notebooks" / path.name
        text = path.read_text().replace("(../RESULTS.md)", "(../results/claims.md)")
        text = text.replace("(../docs/", "(../")
        if not copy.exists() or copy.read_text() != text:  # else its page is not built again
            copy.write_text(text)


def _link_pages(app, path, docname: str, content: list[str]) -> None:
    content[0] = content[0].replace("(../../RESULTS.md)", "(claims.md)")
    entry = r"\[((\w+)\.[\w.]+)\]\(experiments/results/papers/[^)]*\)"
    content[0] = re.sub(entry, _link_entry, content[0])


def _link_entry(match: re.Match[str]) -> str:
    name, paper = match[1], match[2]
    return f"[{name}]({paper}.md#{name.replace('.', '-').lower()})"


def _link_notebooks(app, docname: str, content: list[str]) -> None:
    content[0] = content[0].replace("(../notebooks/", "(notebooks/")  # the copies


def _document_modules(app, docname: str, content: list[str]) -> None:
    """Replace blocks `modules` by a heading and the docstrings of each named module."""

    def documented(block: re.Match[str]) -> str:
        entry = "## `{0}`\n\n```{{eval-rst}}\n.. automodule:: {0}\n```\n"
        names = block[1].replace("jaxreplay.methods.*", " ".join(_methods())).split()
        return "\n".join(entry.format(name) for name in names)

    content[0] = re.sub(r"^```\{modules\}\n(.*?)^```\n", documented, content[0], flags=re.M | re.S)


def _methods() -> list[str]:
    from jaxreplay.methods import METHODS

    return [entry.method.__module__ for entry in METHODS.values()]
