"""The report: what is on it, escaped, sound without a browser, and the same bytes when it is built again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from analysis.page_check import problems
from analysis.report import page
from analysis.report_contents import Contents, Inconsistency, Item, Outcome, Rendering, read_rendering
from analysis.report_evidence import Evidence, read_evidence
from analysis.report_picture import picture_html, short_svg, size
from analysis.report_runs import with_runs
from analysis.report_tables import read_markdown
from analysis.report_verdicts import counts, rows, split
from analysis.selection import load
from analysis.tables import Column, Table, to_markdown
from experiments.deviations import DEVIATIONS
from experiments.inconsistencies import INCONSISTENCIES
from experiments.items import ITEMS
from repro.errors import DataError
from repro.report import chosen_scales
from repro.reproduce import main
from tests.report_page import committed_contents, committed_page
from tests.synthetic_runs import write_run

ROOT = Path(__file__).resolve().parents[1]
SVG = """<?xml version="1.0"?>
<svg width="72pt" height="36pt" viewBox="0 0 72 36" xmlns="http://www.w3.org/2000/svg">
 <metadata>who made it</metadata>
 <path d="M 0.123456 1
L 2.5 -3.999999
" transform="scale(0.015625)"/>
</svg>"""


def rendering(scale: str, *outcomes: Outcome, folder: Path, **more: object) -> Rendering:
    svg = folder / f"{scale}.svg"
    svg.write_text(SVG)
    given = {"run_ids": (), "tables": (), "command": "render x", "git": "abc", "stem": f"results/{scale}/x"}
    return Rendering(scale=scale, picture=svg, outcomes=outcomes, **{**given, **more})  # type: ignore[arg-type]


def item(*renderings: Rendering, name: str = "fig1", title: str = "Fig. 1. A title") -> Item:
    return Item(name, title, "A claim.", ("A deviation.",), renderings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "-0.064 [-0.223, +0.095], paper -0.029, underpowered",
            Evidence(["-0.064"], ["[-0.223, +0.095]"], "-0.029", "underpowered"),
        ),
        (
            "+0.178 [+0.168, +0.189], paper -0.006, no verdict under 3 seeds",
            Evidence(["+0.178"], ["[+0.168, +0.189]"], "-0.006", "no verdict under 3 seeds"),
        ),
        (
            "full minus 0.5 -0.375 [-0.375, -0.375]; block_s4 minus 0.5 +0.188",
            Evidence(["full minus 0.5 -0.375", "block_s4 minus 0.5 +0.188"], ["[-0.375, -0.375]", ""]),
        ),
        ("-0.085 [-0.208, +0.039] at the end", Evidence(["-0.085 at the end"], ["[-0.208, +0.039]"])),
        ("Full 4.8e-06, Block (S=4) 3.7e-07", Evidence(["Full 4.8e-06, Block (S=4) 3.7e-07"], [""])),
        ("not trained", Evidence(["not trained"], [""])),
    ],
)
def test_evidence_is_taken_apart(text: str, expected: Evidence) -> None:
    assert read_evidence(text) == expected


def test_a_rendered_table_is_read_back() -> None:
    columns = [Column("0", "arm", numeric=False), Column("1", "loss")]
    first = Table("One | two", columns, [{"0": "a|b", "1": "1.0"}, {"0": "c"}], notes=("a note", "another"))
    second = Table("Second", columns, [{"0": "<b>", "1": "2"}])
    text = to_markdown([first, second]) + "\n![x](x.svg)\n"
    back = read_markdown(text)
    assert [table.title for table in back] == ["One | two", "Second"]
    assert back[0].cells() == [["a|b", "1.0"], ["c", "–"]]
    assert [column.numeric for column in back[0].columns] == [False, True]
    assert back[0].notes == ["a note", "another"]
    assert back[1].cells() == [["<b>", "2"]]
    assert back[1].notes == []


def test_path_coordinates_are_shortened_and_nothing_else() -> None:
    short = short_svg(SVG)
    assert 'd="M 0.12 1 L 2.5 -4"' in short
    assert "scale(0.015625)" in short
    assert "who made it" not in short
    assert size(SVG) == (96.0, 48.0)  # 72 and 36 points at 96 pixels an inch


def test_a_large_picture_is_shown_as_pixels_where_they_are_fewer(tmp_path: Path) -> None:
    svg = tmp_path / "x.svg"
    svg.write_text(SVG.replace("<metadata>", "<!--" + "x" * 500_000 + "--><metadata>"))
    assert "data:image/svg+xml" in picture_html(svg, "x")
    svg.with_suffix(".png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert "data:image/png" in picture_html(svg, "x")


def test_verdicts_set_ours_beside_the_paper(tmp_path: Path) -> None:
    published = rendering(
        "published",
        Outcome("A is better.", True, "-0.020"),
        Outcome("Digitised: 4 rows.", True, "4"),
        folder=tmp_path,
    )
    quick = rendering(
        "quick",
        Outcome("A is better.", None, "-0.064 [-0.223, +0.095], paper -0.020, underpowered"),
        Outcome("Digitised: 4 rows.", True, "4"),
        Outcome("Ours alone.", False, "12"),
        folder=tmp_path,
        num_seeds=(1, 3),
    )
    table = list(rows([item(published, quick)]))
    assert [
        (row.statement, row.paper, row.paper_verdict, row.scale, row.seeds, row.verdict) for row in table
    ] == [
        ("A is better.", "-0.020", "holds", "quick", "1 to 3 seeds", "open"),
        ("Digitised: 4 rows.", "4", "holds", "", "", ""),  # of the paper's numbers, at whatever scale
        ("Ours alone.", "", "", "quick", "1 to 3 seeds", "fails"),
    ]
    assert table[0].ours == Evidence(["-0.064"], ["[-0.223, +0.095]"], "-0.020", "underpowered")
    tested, alone = split(table)
    assert [row.statement for row in tested] == ["A is better.", "Ours alone."]
    assert [row.statement for row in alone] == ["Digitised: 4 rows."]
    assert counts(table, ["published", "quick"]) == [("published", 2, 0, 0), ("quick", 0, 1, 1)]


def test_everything_on_the_page_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(\"x\")</script> & 'y'"
    table = Table(evil, [Column("0", evil)], [{"0": evil}], notes=(evil,))
    shown = rendering(
        "quick",
        Outcome(evil, False, evil),
        folder=tmp_path,
        tables=(table,),
        command=evil,
        run_ids=(evil,),
        seeds=evil,
        setting=evil,
        warnings=(evil,),
    )
    entry = Item("fig1", evil, evil, (evil,), (shown,), (("cpu", evil),))
    text = page(
        Contents([entry], [Inconsistency("k", evil, evil, ("fig1",), (evil,))], ["published", "quick"])
    )
    assert problems(text) == []
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 15


def test_the_committed_page_is_sound_and_complete() -> None:
    text = committed_page()
    assert problems(text) == []
    assert len(text) < 8_000_000
    for name in ITEMS:
        assert f'<h2 id="{name}">' in text
    for found in committed_contents().items:
        for shown in found.renderings:
            assert f'id="{found.name}-{shown.scale}"' in text
            assert all(run_id in text for run_id in shown.run_ids)
    assert not re.search(r'(?:src|href)="(?!data:image/|#)', text)
    assert "prefers-color-scheme: dark" in text


def test_the_same_contents_give_the_same_bytes() -> None:
    assert page(committed_contents()) == committed_page()


def test_notes_name_items_that_exist() -> None:
    assert set(DEVIATIONS) == set(ITEMS)
    assert {name for entry in INCONSISTENCIES for name in entry.items} <= set(ITEMS)
    assert len({entry.key for entry in INCONSISTENCIES}) == len(INCONSISTENCIES) >= 15
    assert all((ROOT / place).exists() for entry in INCONSISTENCIES for place in entry.elsewhere)
    assert all(entry.items or entry.elsewhere for entry in INCONSISTENCIES)


SOUND = '<!DOCTYPE html><html lang="en"><body id="a"><p>x</p><a href="#a">y</a><br></body></html>'


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("</p>", "", "</body> where </p> was due"),
        ("</p>", "</p></div>", "</div> where </body> was due"),
        ("</html>", "", "<html> is never closed"),
        ("<p>", '<p id="a">', "id a is used 2 times"),
        ("#a", "#b", "link to #b, which is not there"),
        ("#a", "https://example.org", "link that leads out of the page: https://example.org"),
        ("<br>", '<img src="x.png" alt="x">', "image that is no part of the page: x.png"),
        ("<br>", '<img src="data:image/png;base64,AAAA" alt="x">', "image that is not image/png"),
        ("<br>", '<img src="data:image/png;base64,iVBORw0KGgo=">', "image without a text alternative"),
        ("<br>", "<script></script>", "a script"),
        ("<br>", '<link rel="stylesheet" href="x.css">', "<link> fetches x.css"),
    ],
)
def test_the_check_sees(before: str, after: str, said: str) -> None:
    assert problems(SOUND) == []
    found = problems(SOUND.replace(before, after, 1))
    assert any(said in line for line in found), found


def files(folder: Path, name: str, scale: str, run_ids: list[str]) -> None:
    place = folder / "results" / scale
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.svg").write_text(SVG)
    (place / f"{name}.md").write_text(to_markdown([Table("T", [Column("0", "arm")], [{"0": "x"}])]))
    known = {
        "command": f"render {name}",
        "run_ids": run_ids,
        "checks": [],
        "git": {"sha": "a" * 40, "dirty": False},
    }
    (place / f"{name}.provenance.json").write_text(json.dumps(known))


def test_the_command_reuses_files_and_says_where_they_are_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, entry in ITEMS.items():
        if not entry.scales or "published" in entry.scales:
            files(tmp_path, name, "published", [])
    first = write_run(tmp_path / "runs", "prenorm", 1, [4.0, 5.0, 4.0])
    for name in ("table4", "lr"):
        files(tmp_path, name, "quick", [first.name, "0123456789ab"])
    second = write_run(tmp_path / "runs", "prenorm", 2, [4.0, 5.0, 4.0])
    rendered = (tmp_path / "results/quick/table4.provenance.json").stat().st_mtime
    os.utime(second / "final.json", (rendered + 60, rendered + 60))
    lr = tmp_path / "results/quick/lr.provenance.json"  # shows one seed on purpose, and knew of the other
    os.utime(lr, (rendered + 120, rendered + 120))
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["report", *places]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"table4 at quick: Older than its runs: rendered without \w{12} \(prenorm, seed 2\)", out
    )
    assert "lr at quick: Older" not in out
    assert "table4 at quick: Rendered from runs whose records are not here: 0123456789ab." in out
    text = (tmp_path / "results/report.html").read_text()
    assert problems(text) == []
    assert "seed 1: prenorm" in text
    assert "0.655M tokens" in text
    assert "fig6 SCALE=quick" in text  # not rendered there
    assert main(["report", *places]) == 0
    assert (tmp_path / "results/report.html").read_text() == text


def test_a_missing_seed_is_old_wherever_several_are_shown(tmp_path: Path) -> None:
    ids = [write_run(tmp_path, "prenorm", seed, [4.0, 5.0, 4.0]).name for seed in (1, 2, 3)]
    write_run(tmp_path, "prenorm", 4, None, status="failed")
    write_run(tmp_path, "prenorm", 5, [4.0, 5.0, 4.0], optim={"lr": 0.1})  # another setting
    write_run(tmp_path, "full", 1, [4.0, 5.0, 4.0])  # not an arm of the item
    runs = {run.run_id: run for run in load(tmp_path, "quick", ["prenorm", "full"])[0]}
    for shown, missed in ((ids[:2], [ids[2]]), (ids, []), (ids[:1], [])):
        found = with_runs(rendering("quick", folder=tmp_path, run_ids=shown), ["prenorm"], runs)
        assert len(found.warnings) == len(missed)
        assert all(run_id in found.warnings[0] for run_id in missed)
    assert found.num_seeds == (1, 1)
    newer = with_runs(rendering("quick", folder=tmp_path, run_ids=ids[:1]), ["prenorm"], runs, lambda _: True)
    assert "prenorm, seed 2" in newer.warnings[0]
    assert "prenorm, seed 3" in newer.warnings[0]


def test_seeds_are_those_of_finished_runs(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0, 5.0, 4.0])
    write_run(tmp_path, "prenorm", 2, [4.0, 5.0, 4.0])
    write_run(tmp_path, "full", 1, [4.0, 5.0, 4.0])
    write_run(tmp_path, "full", 2, None, status="diverged", diverged_at_step=3)
    runs = {run.run_id: run for run in load(tmp_path, "quick", ["prenorm", "full"])[0]}
    found = with_runs(rendering("quick", folder=tmp_path, run_ids=list(runs)), ["prenorm", "full"], runs)
    assert found.seeds == "seeds 1, 2: prenorm; seed 1: full; diverged: full seed 2"
    assert found.num_seeds == (1, 2)
    assert found.setting == (
        "Models: width 64, 0.655M tokens, corpus prose, peak learning rate 0.003, 1M parameters."
    )


@pytest.mark.parametrize(
    ("scale", "said"),
    [("huge", "--scale='huge': must be one of published"), ("quick,", "--scale='': must be")],
)
def test_an_unknown_scale_is_one_line(
    tmp_path: Path, scale: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--scale", scale, "--runs", str(tmp_path), "--results", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_which_scales_are_shown(tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    for place in (runs / "cpu", runs / "smoke", results / "quick" / "runs"):
        place.mkdir(parents=True)
    files(tmp_path, "table4", "gpu", [])
    known = ["cpu", "cpu_wide", "gpu", "quick", "smoke"]
    assert chosen_scales(known, None, runs, results) == ["published", "cpu", "gpu", "quick"]
    assert chosen_scales(known, "smoke,published,smoke", runs, results) == ["published", "smoke"]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    files(tmp_path, "table4", "quick", [])
    provenance = tmp_path / "results/quick/table4.provenance.json"
    provenance.write_text("{")
    with pytest.raises(DataError, match=r"table4\.provenance\.json: cannot be read .*render the item again"):
        read_rendering(tmp_path / "results", "quick", "table4")
    assert read_rendering(tmp_path / "results", "quick", "fig6") is None
