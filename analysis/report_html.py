"""HTML from plain values: everything is escaped unless it is already markup."""

from __future__ import annotations

import html
from collections.abc import Sequence

from analysis.tables import EMPTY, Table

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


Row = tuple[str | None, str | None, Sequence[Markup]]


def cards(label: str, names: Sequence[str], rows: Sequence[Row], kind: str) -> Markup:
    """A table that becomes one card per row on a phone, each cell with its column's name before it.

    rows: class, id and cells of each; an empty cell is a dash, and left out of a card.  kind: class of the
    table.
    """
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    body = [
        tag(
            "tr",
            *(
                tag("td", cell or EMPTY, data_label=name, class_=None if cell else "none")
                for name, cell in zip(names, cells, strict=True)
            ),
            class_=class_,
            id=anchor,
        )
        for class_, anchor, cells in rows
    ]
    content = tag("table", tag("thead", head), tag("tbody", lines(*body)), class_=f"cards {kind}")
    return scrolled(content, label)


def table_html(table: Table) -> Markup:
    """A rendered table in a scrolling box, its title above (it may be wider) and its notes below."""
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
        tag("thead", tag("tr", *head)),
        tag("tbody", lines(*body)),
    )
    notes = tag("ul", *(tag("li", note) for note in table.notes), class_="notes") if table.notes else Markup()
    title = tag("p", table.title, class_="title") if table.title else Markup()
    return lines(title, scrolled(content, table.title or "table"), notes)
