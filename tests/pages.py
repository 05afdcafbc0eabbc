"""Parser of pages of results for tests of their content."""

import functools
from html.parser import HTMLParser

from tests.refusals import _contains

_VOID = ("meta", "img")


class Page(HTMLParser):
    """Content of a page: tables, code, warnings, text of figures, all text, tags, references."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tables, self.code, self.warnings, self.figures, self.text = [], [], [], [], ""
        self.tags, self.references = [], []
        self._inside = []
        self.feed(text)
        self.close()
        assert self._inside == [], self._inside

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        names = ("src", "href", "xlink:href")
        self.references += [attrs[name] for name in names if attrs.get(name)]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "pre":
            self.code.append("")
        elif tag == "svg" and "role" in attrs:  # not a line of a legend
            self.figures.append([])
        elif tag == "text":
            self.figures[-1].append("")
        if tag not in _VOID:
            self._inside.append((tag, attrs))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._inside.pop()

    def handle_endtag(self, tag):
        assert self._inside.pop()[0] == tag

    def handle_data(self, data):
        tag, attrs = self._inside[-1] if self._inside else ("", {})
        if tag in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif tag == "pre":
            self.code[-1] += data
        elif tag == "text":
            self.figures[-1][-1] += data
        elif tag == "li" and ("ul", {"class": "warnings"}) in self._inside:
            self.warnings.append(data)
        if tag != "style":
            self.text += data

    def warns(self, *parts):
        """Return whether one warning contains all parts."""
        return any(all(map(functools.partial(_contains, line), parts)) for line in self.warnings)

    def table(self, *beginning):
        """Return rows of the table whose header starts with these columns, as dictionaries."""
        (found,) = [t for t in self.tables if tuple(t[0][: len(beginning)]) == beginning]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    def shows(self, *parts):
        """Return whether one figure has all of these texts."""
        return any(set(parts) <= set(texts) for texts in self.figures)
