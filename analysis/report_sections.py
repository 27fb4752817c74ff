"""The sections of the report: verdicts, one per item, the paper's inconsistencies, how to rebuild."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from analysis.report_contents import PUBLISHED, Contents, Inconsistency, Item, Rendering
from analysis.report_html import Markup, join, lines, scrolled, table_html, tag
from analysis.report_picture import picture_html
from analysis.report_verdicts import FAILS, VerdictRow, counts, rows, seeds_text, verdict
from analysis.tables import EMPTY

_NUMBER = re.compile(r"(?:Table|Fig\.) \d+")
COMMANDS = """\
make published                 # every item from the paper's own numbers, no training
make table4 SCALE=quick SEEDS=1,2,3
make report                    # this page, from what is rendered under results/
python -m repro.reproduce why table4 --scale quick
"""


def verdict_section(contents: Contents) -> Markup:
    """Statements that hold, fail and are open by scale, then every statement with its evidence."""
    table = list(rows(contents.items))
    return lines(
        tag("h2", "Verdicts", id="verdicts"),
        tag(
            "p",
            "Each row is a statement that the paper makes or that follows from its numbers. The column "
            "“paper” says what the paper's own numbers give, and whether they bear the statement out. "
            "“Ours” is measured here, at the scale named, with a 95 % interval (t over paired seeds unless "
            "the item says otherwise). A statement is open where the interval decides nothing or fewer than "
            "three seeds were run.",
        ),
        _count_table(counts(table, contents.scales)),
        _verdict_table(table),
    )


def _count_table(found: Sequence[tuple[str, int, int, int]]) -> Markup:
    head = tag("tr", *(tag("th", text, scope="col") for text in ("source", "hold", "fail", "open")))
    body = [
        tag(
            "tr",
            tag("td", "the paper's own numbers" if scale == PUBLISHED else f"runs at scale {scale}"),
            *(tag("td", str(number), class_="num") for number in numbers),
        )
        for scale, *numbers in found
    ]
    content = tag("table", tag("thead", head), tag("tbody", lines(*body)))
    return scrolled(content, "statements that hold, fail and are open, by source")


def _verdict_table(table: Sequence[VerdictRow]) -> Markup:
    names = ("item", "statement", "paper", "scale, seeds", "ours", "95 % interval", "verdict")
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    first = [True, *(before.item is not after.item for before, after in pairwise(table))]
    body = [_verdict_row(row, begins) for row, begins in zip(table, first, strict=False)]
    content = tag("table", tag("thead", head), tag("tbody", lines(*body)), class_="verdicts")
    return scrolled(content, "verdict table")


def _verdict_row(row: VerdictRow, begins: bool) -> Markup:
    ours = row.ours
    paper = [join(row.paper or EMPTY)]
    if row.paper_verdict:
        paper.append(_word(row.paper_verdict, "holds there" if row.paper_verdict != FAILS else "fails there"))
    return tag(
        "tr",
        tag("td", tag("a", _short_title(row.item), href=f"#{row.item.name}"), class_="short"),
        tag("td", row.statement),
        tag("td", _stacked(paper)),
        tag("td", f"{row.scale}, {row.seeds}" if row.scale else EMPTY, class_="short"),
        tag("td", _stacked([join(value) for value in ours.values]) if ours else EMPTY),
        tag("td", _stacked([join(interval or EMPTY) for interval in ours.intervals]) if ours else EMPTY),
        tag(
            "td", _stacked([_word(row.verdict), tag("span", ours.reason, class_="reason")]) if ours else EMPTY
        ),
        class_="first" if begins else None,
    )


def _word(word: str, text: str = "") -> Markup:
    return tag("span", text or word, class_=f"word {word}")


def _stacked(parts: Sequence[Markup]) -> Markup:
    return Markup("<br>".join(part for part in parts if part))


def _short_title(item: Item) -> str:
    """``Table 4`` of ``Table 4. Ablations``; a title without a number is short itself."""
    number = _NUMBER.match(item.title)
    return number.group() if number else item.name


def item_section(item: Item) -> Markup:
    """One item: claim, deviations, and each rendering with picture, caption, statements and tables."""
    parts = [tag("h2", item.title, id=item.name), tag("p", tag("strong", "Claim. "), item.claim)]
    if item.deviations:
        deviations = [tag("li", text) for text in item.deviations]
        parts.append(tag("p", tag("strong", "What differs from the paper.")))
        parts.append(tag("ul", *deviations, class_="plain"))
    parts += [_rendering(item, rendering) for rendering in item.renderings]
    if item.absent:
        absent = [tag("li", f"{scale}: {why}") for scale, why in item.absent]
        parts.append(
            tag("details", tag("summary", "Not shown at other scales"), tag("ul", *absent, class_="plain"))
        )
    return tag("section", lines(*parts))


def _rendering(item: Item, rendering: Rendering) -> Markup:
    heading = "The paper's numbers" if rendering.scale == PUBLISHED else f"Runs at scale {rendering.scale}"
    warnings = [tag("p", text, class_="warning") for text in rendering.warnings]
    alternative = (
        f"{item.title}, {'the paper' if rendering.scale == PUBLISHED else 'scale ' + rendering.scale}"
    )
    picture = tag("div", picture_html(rendering.picture, alternative), class_="picture scroll", tabindex="0")
    return lines(
        tag("h3", heading, id=f"{item.name}-{rendering.scale.replace('/', '-')}"),
        *warnings,
        tag("figure", picture, tag("figcaption", *_caption(rendering))),
        _outcomes(rendering),
        *(table_html(table) for table in rendering.tables),
    )


def _caption(rendering: Rendering) -> list[Markup]:
    if rendering.scale == PUBLISHED:
        said = "The paper's numbers (arXiv:2603.15031v1), one run each and without intervals unless stated."
    elif rendering.run_ids:
        said = f"Scale {rendering.scale}, {seeds_text(rendering)}: {rendering.seeds}. {rendering.setting}"
    else:
        said = f"Scale {rendering.scale}; no training run stands behind these numbers."
    made = (
        f" Files: {rendering.stem}.csv, .md, .tex, .svg, .png; by {rendering.command}; git {rendering.git}."
    )
    parts = [join(said, made)]
    if rendering.run_ids:
        ids = tag("p", " ".join(rendering.run_ids), class_="ids")
        parts.append(tag("details", tag("summary", f"{len(rendering.run_ids)} run ids"), ids))
    return parts


def _outcomes(rendering: Rendering) -> Markup:
    if not rendering.outcomes:
        return Markup()
    items = [
        tag("li", _word(verdict(o.holds)), f" {o.statement} ", tag("span", o.evidence, class_="soft"))
        for o in rendering.outcomes
    ]
    count = f"{len(items)} statement" + ("s" if len(items) != 1 else "")
    return tag(
        "details", tag("summary", f"{count} and what decides them"), tag("ul", lines(*items), class_="plain")
    )


def inconsistency_section(found: Sequence[Inconsistency], items: Sequence[Item]) -> Markup:
    """The paper's own inconsistencies as a table, each linked to what shows it."""
    titles = {item.name: _short_title(item) for item in items}
    head = tag("tr", *(tag("th", text, scope="col") for text in ("", "the paper", "found", "shown by")))
    body = [
        tag(
            "tr",
            tag("td", str(number), class_="num"),
            tag("td", entry.paper),
            tag("td", entry.found),
            tag("td", _stacked(_pointers(entry, titles)) or EMPTY),
            id=f"inconsistency-{entry.key}",
        )
        for number, entry in enumerate(found, start=1)
    ]
    content = tag("table", tag("thead", head), tag("tbody", lines(*body)), class_="wide")
    return lines(
        tag("h2", "Where the paper disagrees with itself", id="inconsistencies"),
        tag(
            "p",
            "Found while rebuilding the tables and figures. None of these is an error of the method; each is "
            "something that a reader who compares numbers has to know.",
        ),
        scrolled(content, "the paper's inconsistencies"),
    )


def _pointers(entry: Inconsistency, titles: dict[str, str]) -> list[Markup]:
    links = [tag("a", titles[name], href=f"#{name}") for name in entry.items if name in titles]
    return links + [tag("code", place) for place in entry.elsewhere]


def rebuild_section() -> Markup:
    """How to make every file on the page again."""
    return lines(
        tag("h2", "How to rebuild", id="rebuild"),
        tag(
            "p",
            "The page is built from the files under results/ without PyTorch and is the same, byte for "
            "byte, when they are. Published numbers are in experiments/published/, the records of committed "
            "runs in results/<scale>/runs/. The last command leads from any row to its runs, their configs "
            "and the commands that train them again.",
        ),
        scrolled(tag("pre", tag("code", COMMANDS)), "commands"),
    )
