"""The sections of the report: verdicts, one per item, the paper's inconsistencies, how to rebuild."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from analysis.report_contents import PUBLISHED, Contents, Inconsistency, Item, Rendering
from analysis.report_evidence import Evidence
from analysis.report_html import Markup, cards, join, lines, scrolled, table_html, tag
from analysis.report_picture import picture_html
from analysis.report_verdicts import FAILS, OPEN, VerdictRow, counts, rows, split, verdict
from analysis.tables import EMPTY

_NUMBER = re.compile(r"(?:Table|Fig\.) \d+")
TESTED = ("item", "statement", "paper", "scale, seeds", "ours", "95 % interval", "verdict")
ALONE = ("item", "statement", "evidence", "verdict")
COMMANDS = """\
make published                 # every item from the paper's own numbers, no training
make table4 SCALE=quick SEEDS=1,2,3
make report                    # this page, from what is rendered under results/
python -m repro.reproduce why table4 --scale quick
"""


def verdict_section(contents: Contents) -> Markup:
    """Statements that hold, fail and are open by scale, then every statement with its evidence."""
    table = list(rows(contents.items))
    tested, alone = split(table)
    return lines(
        tag("h2", "Verdicts", id="verdicts"),
        tag(
            "p",
            "Each row is a statement of the paper, or one that follows from its statements. “Ours” is "
            "measured here at the scale named, with a 95 % interval (t over paired seeds unless the item "
            "says otherwise). A statement is open where the interval decides nothing, or where fewer than "
            "three seeds were run. “Paper” is what the paper's own numbers give, which have no intervals.",
        ),
        _count_table(counts(table, contents.scales)),
        tag("h3", "Tested here", id="verdicts-tested"),
        _verdict_table("statements tested here", TESTED, tested, _tested_cells),
        tag("h3", "Decided by the paper's own numbers, or by derivation", id="verdicts-paper"),
        _verdict_table("statements decided by the paper's numbers", ALONE, alone, _alone_cells),
    )


def _count_table(found: Sequence[tuple[str, int, int, int]]) -> Markup:
    head = [
        tag("th", text, scope="col", class_="num" if text != "source" else None)
        for text in ("source", "hold", "fail", "open")
    ]
    body = [
        tag(
            "tr",
            tag("td", "the paper's own numbers" if scale == PUBLISHED else f"runs at scale {scale}"),
            *(tag("td", str(number), class_="num") for number in numbers),
        )
        for scale, *numbers in found
    ]
    content = tag("table", tag("thead", tag("tr", *head)), tag("tbody", lines(*body)))
    return scrolled(content, "statements that hold, fail and are open, by source")


def _verdict_table(
    label: str,
    names: Sequence[str],
    table: Sequence[VerdictRow],
    cells: Callable[[VerdictRow], Sequence[Markup]],
) -> Markup:
    first = [True, *(before.item is not after.item for before, after in pairwise(table))]
    body = [
        ("first" if begins else None, None, cells(row)) for row, begins in zip(table, first, strict=False)
    ]
    return cards(label, names, body, "verdicts")


def _tested_cells(row: VerdictRow) -> list[Markup]:
    ours = row.ours or Evidence((), ())
    verdict_word = _word(row.verdict) if row.verdict else tag("span", "no runs", class_="soft")
    return [
        _item_link(row.item),
        join(row.statement),
        _paper_cell(row),
        join(f"{row.scale}, {row.seeds}" if row.scale else ""),
        _stacked([join(value) for value in ours.values]),
        _stacked([join(interval or EMPTY) for interval in ours.intervals] if any(ours.intervals) else []),
        _stacked([verdict_word, tag("span", ours.reason, class_="reason") if ours.reason else Markup()]),
    ]


def _paper_cell(row: VerdictRow) -> Markup:
    """Its evidence; the verdict on it only where the paper's own numbers do not bear the statement out."""
    failed = _word(FAILS, "fails on its own numbers") if row.paper_verdict == FAILS else Markup()
    return _stacked([join(row.paper if row.paper_verdict != OPEN else ""), failed])


def _alone_cells(row: VerdictRow) -> list[Markup]:
    return [_item_link(row.item), join(row.statement), join(row.paper), _word(row.paper_verdict)]


def _item_link(item: Item) -> Markup:
    return tag("a", _short_title(item), href=f"#{item.name}", class_="short")


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
        said = "The paper's numbers (arXiv:2603.15031v1); its losses are of one run each, without intervals."
    elif rendering.run_ids:
        said = f"Scale {rendering.scale}; {rendering.seeds}. {rendering.setting}"
    else:
        said = f"Scale {rendering.scale}; no training run stands behind these numbers."
    files = f" Files: {rendering.stem}.csv, .md, .tex, .svg, .png; by "
    parts = [join(said, files, tag("code", rendering.command), f"; git {rendering.git}.")]
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
    body = [
        (
            None,
            f"inconsistency-{entry.key}",
            [join(str(number)), join(entry.paper), join(entry.found), _stacked(_pointers(entry, titles))],
        )
        for number, entry in enumerate(found, start=1)
    ]
    return lines(
        tag("h2", "Where the paper disagrees with itself", id="inconsistencies"),
        tag(
            "p",
            "Found while rebuilding the tables and figures. None of these is an error of the method; each is "
            "something that a reader who compares numbers has to know.",
        ),
        cards("the paper's inconsistencies", ("no.", "the paper", "found", "shown by"), body, "wide"),
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
