"""How far an untrained AttnRes is from PreNorm because of the norms' eps, by depth (not in the paper).

    python -m repro.train.eps_deviation scale=quick

At zero queries a read is the mean of its sources, where PreNorm reads their sum; the norm that follows makes
the two equal only as eps vanishes. Deviation is the root mean square of the difference of the logits over the
standard deviation of PreNorm's, both at the same eps. One forward pass on random tokens for each arm, eps,
depth, initialisation and seed, in float64: in float32 rounding alone is about 1e-6, more than an eps of 1e-8
does to a shallow model. Writes ``results/<scale>/eps_deviation.csv``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from repro.errors import ConfigError
from repro.model.build import build_decoder
from repro.model.norm import RMSNorm
from repro.runs.atomic import write_bytes
from repro.train import settings
from repro.train.paths import config_directory, resolve_path
from repro.train.process import prepare, use_threads
from repro.train.refusal import one_line
from repro.train.sweep import register

BASELINE, ARMS = "prenorm", ("full", "block_s4")
EPS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
DEPTHS = (4, 8, 16, 32)  # transformer blocks
USUAL = ("gpt2", 0.02)  # initialisation and standard deviation of the embedding, beside the scale's own
SEEDS = (1, 2, 3)
SHAPE = (2, 32)  # sequences, tokens


@torch.no_grad()
def logits(config: DictConfig, eps: Sequence[float]) -> list[Tensor]:
    """Logits of the untrained model at each eps, on tokens drawn from its seed; float64, [B, T, vocabulary].

    The model is built once: eps is a number in each of its norms. That of the key norm stays, since the
    queries are zero.
    """
    decoder = build_decoder(config).double().eval()
    generator = torch.Generator().manual_seed(int(config.init_seed))
    length = min(SHAPE[1], int(config.budget.context))
    tokens = torch.randint(0, int(config.model.vocab_size), (SHAPE[0], length), generator=generator)
    found = []
    for value in eps:
        for module in decoder.modules():
            if isinstance(module, RMSNorm):
                module.eps = value
        found.append(decoder(tokens))
    return found


def deviation(found: Tensor, reference: Tensor) -> float:
    """Root mean square of the difference over the standard deviation of the reference."""
    return float((found - reference).square().mean().sqrt() / reference.std())


def rows(configs: dict[str, DictConfig]) -> Iterator[dict[str, object]]:
    """One record per arm, eps, depth, initialisation and seed; configs: arm -> config, with the baseline."""
    model = configs[BASELINE].model
    own = (str(model.init.scheme), float(model.init.embedding_std))
    depths = sorted({*DEPTHS, int(model.num_transformer_blocks)})
    for (scheme, std), depth, seed in product(dict.fromkeys((own, USUAL)), depths, SEEDS):
        init = {"scheme": scheme, "embedding_std": std}
        changes = {"init_seed": seed, "model": {"num_transformer_blocks": depth, "init": init}}
        reference = logits(_changed(configs[BASELINE], changes), EPS)
        for arm in ARMS:
            found = logits(_changed(configs[arm], changes), EPS)
            for eps, one, other in zip(EPS, found, reference, strict=True):
                yield {
                    "arm": arm,
                    "num_transformer_blocks": depth,
                    "init_scheme": scheme,
                    "embedding_std": std,
                    "norm_eps": eps,
                    "init_seed": seed,
                    "deviation": deviation(one, other),
                }


def _changed(config: DictConfig, changes: dict[str, Any]) -> DictConfig:
    merged = OmegaConf.merge(config, changes)
    assert isinstance(merged, DictConfig)
    return merged


def main(overrides: list[str]) -> int:
    """Compute the table for these overrides and write it; the exit code."""
    register()
    prepare()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            configs = {
                arm: compose("train", overrides=[*overrides, f"arm={arm}"]) for arm in (BASELINE, *ARMS)
            }
        for config in configs.values():
            settings.check(config)
        use_threads(configs[BASELINE].runtime.threads)
        table = pd.DataFrame(rows(configs))
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error, overrides)}", file=sys.stderr)
        return 2
    first = configs[BASELINE]
    path = resolve_path(first, first.paths.results) / first.scale / "eps_deviation.csv"
    write_bytes(path, table.to_csv(index=False, float_format="%.6g").encode())
    mean = table.groupby(["init_scheme", "arm", "num_transformer_blocks", "norm_eps"])["deviation"].mean()
    print(mean.unstack().to_string(float_format=lambda value: f"{value:.2g}"))
    print(f"deviation at initialisation: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
