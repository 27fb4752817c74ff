"""The report in a real browser: a silent console, every picture and link there, no sideways scrolling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser, find_browser
from tests.report_page import committed_page

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome here")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(committed_page(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None
    with browser(path) as running:
        yield running


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_sound(page: Path, chromium: Browser, width: int, dark: bool) -> None:
    chromium.messages.clear()
    found = chromium.open(page, width, dark)
    assert chromium.messages == []
    assert found["images"] > 10
    assert found["broken"] == []
    assert found["links"] > 20
    assert found["dangling"] == []
    assert found["repeated"] == []
    assert found["overflow"] == 0, found["wide"]
    assert found["wide"] == []
    assert (found["background"] == "rgb(255, 255, 255)") is not dark


FAULTY = """<!DOCTYPE html><html lang="en"><head><title>faulty</title></head><body>
<p id="twice">a</p><p id="twice">b</p><a href="#nowhere">x</a><img src="missing.png" alt="gone">
<div style="width: 3000px">wide</div><script>console.error('said'); nothing.here()</script></body></html>"""


def test_the_browser_sees_each_fault(tmp_path: Path, chromium: Browser) -> None:
    path = tmp_path / "faulty.html"
    path.write_text(FAULTY, encoding="utf-8")
    chromium.messages.clear()
    found = chromium.open(path, 1280, dark=False)
    assert found["broken"] == ["gone"]
    assert found["dangling"] == ["#nowhere"]
    assert found["repeated"] == ["twice"]
    assert found["overflow"] > 1000
    assert len(found["wide"]) >= 1
    said = " ".join(chromium.messages)
    assert "said" in said
    assert "missing.png" in said or "ERR_FILE_NOT_FOUND" in said
    assert "Uncaught" in said
