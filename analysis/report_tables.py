"""Rendered Markdown back into tables: the inverse of ``analysis.tables.to_markdown``."""

from __future__ import annotations

import re

from analysis.tables import Column, Table

_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def read_markdown(text: str) -> list[Table]:
    """The tables of a rendered ``<item>.md``, in order; its picture and anything else is left out.

    A title is a line in bold, a table the lines that begin with ``|`` after it (the second is the rule that
    says which columns are numbers), notes the list below.
    """
    tables: list[Table] = []
    title, rows, notes = "", [], []  # type: str, list[list[str]], list[str]

    def close() -> None:
        nonlocal title, rows, notes
        if len(rows) >= 2:
            header, rule, *body = rows
            columns = [
                Column(str(i), name, form.endswith(":"))
                for i, (name, form) in enumerate(zip(header, rule, strict=True))
            ]
            cells = [{c.key: text for c, text in zip(columns, row, strict=True)} for row in body]
            tables.append(Table(title, columns, cells, list(notes)))
        title, rows, notes = "", [], []

    for line in text.splitlines():
        if line.startswith("**") and line.endswith("**"):
            close()
            title = line[2:-2]
        elif line.startswith("|"):
            rows.append(_cells(line))
        elif line.startswith("- ") and rows:
            notes.append(line[2:])
    close()
    return tables


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in _BETWEEN_CELLS.split(inner)]
