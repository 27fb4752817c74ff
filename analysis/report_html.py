"""HTML from plain values: everything is escaped unless it is already markup."""

from __future__ import annotations

import html

from analysis.tables import Table

_VOID = frozenset({"br", "col", "hr", "img", "link", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | None) -> Markup:
    """One element; text is escaped, ``Markup`` is not.

    An attribute that is a word of Python ends in an underscore (``class_``), inner ones stand for hyphens;
    None leaves it out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Parts one after another, escaped where they are text."""
    return Markup(
        "".join(part if isinstance(part, Markup) else html.escape(part, quote=False) for part in parts)
    )


def lines(*parts: str) -> Markup:
    """Parts on lines of their own."""
    return Markup("\n".join(join(part) for part in parts))


def scrolled(content: Markup, label: str) -> Markup:
    """A box that scrolls sideways by itself (and by keyboard) where its content is wider than the page."""
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def table_html(table: Table) -> Markup:
    """A rendered table with its title as caption, in its own scrolling box, and its notes below."""
    numeric = ["num" if column.numeric else None for column in table.columns]
    head = [
        tag("th", column.header, scope="col", class_=c)
        for column, c in zip(table.columns, numeric, strict=True)
    ]
    body = [
        tag("tr", *(tag("td", cell, class_=c) for cell, c in zip(row, numeric, strict=True)))
        for row in table.cells()
    ]
    content = tag(
        "table",
        tag("caption", table.title) if table.title else Markup(),
        tag("thead", tag("tr", *head)),
        tag("tbody", lines(*body)),
    )
    notes = tag("ul", *(tag("li", note) for note in table.notes), class_="notes") if table.notes else Markup()
    return lines(scrolled(content, table.title or "table"), notes)
