"""What a browser would stumble over in the report, found without one: ids, links, images, unbalanced tags."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote

_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_FETCHED = ("src", "srcset", "data", "poster", "background")
_KINDS = {"image/png": b"\x89PNG\r\n\x1a\n", "image/svg+xml": b"<?xml"}


def problems(page: str) -> list[str]:
    """One line per fault, in the order found; nothing for a page that is sound.

    Sound: every tag is closed in order, ids are unique, every ``#`` link has its target, nothing is fetched
    (no link or picture leads out, no script), every picture is a data URI of its kind with a text
    alternative.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = list(reader.faults)
    found += [f"<{name}> is never closed" for name in reversed(reader.open)]
    found += [f"id {name} is used {count} times" for name, count in Counter(reader.ids).items() if count > 1]
    found += [f"link to #{name}, which is not there" for name in reader.targets if name not in reader.ids]
    return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in _VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "script":
            self.faults.append("a script")
        if tag == "img":
            self.faults += _of_image(given)
        else:
            self.faults += [f"<{tag}> fetches {given[name][:60]}" for name in _FETCHED if name in given]
        if tag == "a":
            self._link(given.get("href"))
        elif "href" in given:
            self.faults.append(f"<{tag}> fetches {given['href'][:60]}")

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.open or self.open[-1] != tag:
            expected = f"</{self.open[-1]}>" if self.open else "nothing"
            self.faults.append(f"line {self.getpos()[0]}: </{tag}> where {expected} was due")
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def _link(self, href: str | None) -> None:
        if href is None or not href.startswith("#") or href == "#":
            self.faults.append(f"link that leads out of the page: {href}")
        else:
            self.targets.append(unquote(href[1:]))


def _of_image(given: dict[str, str]) -> list[str]:
    kind, comma, data = given.get("src", "").partition(";base64,")
    magic = _KINDS.get(kind.removeprefix("data:"))
    if not comma or magic is None:
        return [f"image that is no part of the page: {given.get('src', '')[:60]}"]
    faults = [] if given.get("alt") else ["image without a text alternative"]
    try:
        whole = base64.b64decode(data, validate=True)
    except binascii.Error:
        return [*faults, "image whose data are damaged"]
    return faults if whole.startswith(magic) else [*faults, f"image that is not {kind.removeprefix('data:')}"]
