"""Parser of report pages for tests of their content."""

import functools
import json
from html.parser import HTMLParser

from tests.refusals import _contains


class Page(HTMLParser):
    """Content of a page: tables, plots, code, warnings, text, tags, references and titles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tables, self.plots, self.code, self.warnings, self.text = [], [], [], [], ""
        self.tags, self.references, self.arms, self.titles = [], [], [], []
        self._inside = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.references += [attrs[name] for name in ("src", "href") if attrs.get(name)]
        if "data-arm" in attrs:
            self.arms.append(attrs["data-arm"])
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "pre":
            self.code.append("")
        elif tag == "figcaption":
            self.titles.append("")
        if tag not in ("meta", "img", "line"):
            self._inside.append((tag, attrs))

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1][0] == tag:
            self._inside.pop()

    def handle_data(self, data):
        tag, attrs = self._inside[-1] if self._inside else ("", {})
        if tag == "script":
            if attrs.get("type") == "application/json":
                self.plots.append(json.loads(data))
        elif tag in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif tag == "pre":
            self.code[-1] += data
        elif tag == "figcaption":
            self.titles[-1] += data
        elif tag == "li" and ("ul", {"class": "warnings"}) in self._inside:
            self.warnings.append(data)
        if tag not in ("script", "style"):
            self.text += data

    def warns(self, *parts):
        """Return whether one warning contains all parts."""
        return any(all(map(functools.partial(_contains, line), parts)) for line in self.warnings)

    def table(self, *beginning):
        """Return rows of the table whose header starts with these columns, as dictionaries."""
        (found,) = [t for t in self.tables if tuple(t[0][: len(beginning)]) == beginning]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    def plot(self, title):
        """Return the plot with this title, or the only one whose title contains it."""
        drawn = list(zip(self.plots, self.titles, strict=True))
        exact = [plot for plot, own in drawn if own == title]
        (found,) = exact or [plot for plot, own in drawn if title in own.lower()]
        return found
