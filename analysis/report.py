"""The report: one HTML page that needs nothing else, from rendered items (no torch, no script)."""

from __future__ import annotations

from analysis.report_contents import Contents
from analysis.report_html import Markup, lines, tag
from analysis.report_sections import inconsistency_section, item_section, rebuild_section, verdict_section
from analysis.report_style import STYLE

TITLE = "Attention Residuals, reproduced"
# A picture is part of the page; anything else that a browser would fetch is refused.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(contents: Contents) -> str:
    """The whole page; the same contents give the same bytes."""
    head = lines(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", TITLE),
        tag("style", Markup(STYLE)),
    )
    body = lines(
        tag("h1", TITLE),
        tag(
            "p",
            "Every table and figure of ",
            tag("cite", "Attention Residuals"),
            " (arXiv:2603.15031v1): the paper's numbers, and what was measured here beside them. The models "
            "here are small; each number carries its scale, its seeds and its interval, and a verdict is "
            "given only where three seeds or more decide it.",
        ),
        _contents(contents),
        tag(
            "main",
            lines(
                tag("section", verdict_section(contents)),
                *(item_section(item) for item in contents.items),
                tag("section", inconsistency_section(contents.inconsistencies, contents.items)),
                tag("section", rebuild_section()),
            ),
        ),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _contents(contents: Contents) -> Markup:
    places = [
        ("verdicts", "Verdicts"),
        *((item.name, item.title) for item in contents.items),
        ("inconsistencies", "Where the paper disagrees with itself"),
        ("rebuild", "How to rebuild"),
    ]
    entries = [tag("li", tag("a", text, href=f"#{name}")) for name, text in places]
    return tag("nav", tag("ul", *entries), aria_label="Contents")
