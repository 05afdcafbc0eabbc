"""The site builds without warnings, includes declarations of code, and loads no external files."""

import html
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.environments.registry import FAMILIES
from experiments.runs.registry import AGENTS
from jaxreplay.methods import METHODS, rank
from jaxreplay.option import options_of
from tests.documents import PAGES, ROOT

LOADING = ("link", "script", "img", "iframe", "source", "video", "audio", "embed")


class Loaded(HTMLParser):
    """Parser that collects the addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in LOADING or given.get("rel") in ("next", "prev", "index", "search"):
            return
        source = given.get("href" if tag == "link" else "src")
        several = filter(None, given.get("srcset", "").split(","))
        self.addresses += [source] if source else []
        self.addresses += [each.split()[0] for each in several]


def loaded_by_page(path: Path) -> list[str]:
    parser = Loaded()
    parser.feed(path.read_text())
    return parser.addresses


def loaded_by_style(path: Path) -> list[str]:
    text = path.read_text()
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", text)
    return [first or second for first, second in found]


def is_elsewhere(address: str) -> bool:
    return re.match(r"([a-z]+:)?//", address) is not None


def build(site: Path, trees: Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", trees]
    built = subprocess.run(
        [*command, ROOT / "docs", site], env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr


def check_pages(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    expected = {Path(name).with_suffix(".html") for name in PAGES}
    assert expected <= {page.relative_to(site) for page in pages}
    for page in pages:
        for address in loaded_by_page(page):
            assert not is_elsewhere(address), f"{page.name} loads {address}"
            if not address.startswith(("data:", "#")):
                assert (page.parent / address.partition("?")[0]).is_file(), (page.name, address)


def check_styles_and_scripts(site: Path) -> None:
    for style in site.rglob("*.css"):
        assert not [found for found in loaded_by_style(style) if is_elsewhere(found)], style
    for script in site.rglob("*.js"):
        text = script.read_text()
        assert not re.search(r"(import\(|fetch\(|src\s*=)\s*[`'\"](https?:)?//", text), script


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def check_generated(site: Path) -> None:
    """Check that formulas, options and comments of fields are on their pages."""
    page = (site / "methods" / "per.html").read_text()
    assert "<math" in page and "$" not in re.sub(r"<(script|pre).*?</\1>", "", page, flags=re.S)
    helps = {entry.name: entry.help for entry in options_of(METHODS["per"].config)}
    assert "--replay.beta-updates" in page
    assert helps["beta_updates"].replace("`", "") in text_of(page)
    api = (site / "api" / "methods.html").read_text()
    source = Path(inspect.getsourcefile(rank)).read_text()
    (comment,) = re.findall(r"^    largest: Array  # \[\] float32, (.+)$", source, re.MULTILINE)
    assert comment.replace("`", "") in text_of(api)


def test_site_builds_without_warnings_and_loads_no_external_files(tmp_path):
    pytest.importorskip("furo", reason="pip install '.[docs]'")
    site = tmp_path / "site"
    build(site, tmp_path / "trees")
    check_pages(site)
    check_styles_and_scripts(site)
    check_generated(site)


def test_addresses_that_pages_load_are_found(tmp_path):
    page, style = tmp_path / "page.html", tmp_path / "style.css"
    page.write_text('<link rel=stylesheet href="https://a/b.css"><a href="//c">c</a><img src=x>')
    style.write_text("@import '//fonts/f.css'; a { background: url(x.png) }")
    assert loaded_by_page(page) == ["https://a/b.css", "x"]
    assert loaded_by_style(style) == ["//fonts/f.css", "x.png"]
    assert [is_elsewhere(one) for one in ("https://a/b", "//f", "x.png")] == [True, True, False]


def test_every_method_agent_and_family_is_documented():
    for name, entry in METHODS.items():
        config = f"{entry.config.__module__}:{entry.config.__name__}"
        page = PAGES[f"methods/{name}.md"].read_text()
        assert f"{{options}} {config}\n" in page
    for name, entry in AGENTS.items():
        config = f"{entry.config.__module__}:{entry.config.__name__}"
        assert f"{{options}} {config}\n" in PAGES[f"agents/{name}.md"].read_text()
    assert all(f"`{family}/" in PAGES["environments.md"].read_text() for family in FAMILIES)
