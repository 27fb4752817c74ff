"""One table, four forms: csv for machines, Markdown and TeX for papers, aligned text for the terminal.

The text forms share one set of formatted cells; the csv has its own records, since it keeps every digit and
the run ids.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TERMINAL_WIDTH = 120
EMPTY = "–"

_TEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Column:
    """A column of the text forms: ``key`` finds its cell in a row; numbers are set flush right."""

    key: str
    header: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Formatted cells: rows map column keys to text (a missing key is an empty cell); notes stand below.

    groups: rows that begin a group and have a rule above them (not in Markdown, which has none).
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, str]]
    notes: Sequence[str] = field(default=())
    groups: Sequence[int] = ()

    def cells(self) -> list[list[str]]:
        """The rows as lists of text, in column order."""
        return [[row.get(c.key, EMPTY) for c in self.columns] for row in self.rows]


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Records as csv; the columns are those of the first record, and None is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_text(table: Table, width: int = TERMINAL_WIDTH) -> str:
    """Aligned text for a terminal; notes are wrapped at ``width``, columns are not: choose them to fit."""
    cells = table.cells()
    widths = [
        max(map(len, column)) for column in zip(*[[c.header for c in table.columns], *cells], strict=True)
    ]

    def line(row: Sequence[str]) -> str:
        parts = [
            text.rjust(w) if c.numeric else text.ljust(w)
            for text, w, c in zip(row, widths, table.columns, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [table.title, rule, line([c.header for c in table.columns]), rule]
    for index, row in enumerate(cells):
        lines += [rule, line(row)] if index in table.groups else [line(row)]
    lines.append(rule)
    for note in table.notes:
        lines += textwrap.wrap(note, width, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub Markdown: each table under its title, its notes as a list below."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"

    parts = []
    for table in tables:
        rule = ["---:" if c.numeric else "---" for c in table.columns]
        lines = [f"**{table.title}**", "", line([c.header for c in table.columns]), line(rule)]
        lines += map(line, table.cells())
        if table.notes:
            lines += ["", *(f"- {note}" for note in table.notes)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def tex_escape(text: str) -> str:
    """Plain text as LaTeX that compiles with any engine."""
    return "".join(_TEX.get(c, c) for c in text)


def to_tex(tables: Sequence[Table]) -> str:
    """LaTeX ``table`` environments (``booktabs``, ``graphicx``): title as caption, notes below it."""

    def line(row: Sequence[str]) -> str:
        return "    " + " & ".join(map(tex_escape, row)) + r" \\"

    parts = ["% needs \\usepackage{booktabs,graphicx}\n"]
    for table in tables:
        form = "".join("r" if c.numeric else "l" for c in table.columns)
        lines = [r"\begin{table}", r"  \centering\small", f"  \\caption{{{tex_escape(table.title)}}}"]
        # Shrinks to the line where it is wider, and is never enlarged.
        lines += [r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
        lines += [f"  \\begin{{tabular}}{{{form}}}", r"    \toprule", line([c.header for c in table.columns])]
        lines.append(r"    \midrule")
        for index, row in enumerate(table.cells()):
            lines += [r"    \midrule", line(row)] if index in table.groups else [line(row)]
        lines += [r"    \bottomrule", r"  \end{tabular}}"]
        lines += [f"  \\par\\smallskip{{\\footnotesize {tex_escape(note)}}}" for note in table.notes]
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)
