"""Time of a training step of each arm relative to PreNorm, measured alone and interleaved.

    python -m repro.train.step_time experiment=table4 scale=quick

All arms live in one process and take turns: a round times one whole step (forward, backward, clipping,
optimizer) of every arm, in an order that rotates, and divides by the PreNorm step of the same round. So a
slow spell of the machine hits both sides of a ratio. Never taken from training runs, which share cores.
Writes ``results/<scale>/step_time.csv``; arms already measured with the same settings are kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from repro.errors import ConfigError
from repro.model.build import build_decoder
from repro.runs import host_description, identity
from repro.runs.atomic import write_bytes
from repro.train import settings
from repro.train.optim import build_optimizer
from repro.train.paths import config_directory, resolve_path
from repro.train.process import prepare, use_threads
from repro.train.refusal import one_line
from repro.train.sweep import register

BASELINE = "prenorm"
ROUNDS = 9
COLUMNS = ["arm", "ratio_median", "ratio_lower_quartile", "ratio_upper_quartile", "ms_median"]
_DECIDES = ("model", "data", "optim", "budget", "precision", "semantics")


def swept_arms(overrides: list[str]) -> list[str]:
    """Arms that an experiment's sweep names, in its order (or the one arm of a plain command)."""
    config = compose("train", overrides=overrides, return_hydra_config=True)
    listed = (config.hydra.sweeper.params or {}).get("arm")
    if not listed:
        return [config.arm.name]
    value = OverridesParser.create().parse_override(f"arm={listed}").value()
    if isinstance(value, Glob):
        return value.filter(sorted(path.stem for path in (config_directory() / "arm").glob("*.yaml")))
    return [name.strip() for name in str(listed).split(",")]


class Contestant:
    """One arm's model and optimizer on the configured device, ready to take a step."""

    def __init__(self, config: DictConfig) -> None:
        accelerator = config.trainer.accelerator
        if accelerator == "gpu" and not torch.cuda.is_available():
            raise ConfigError("trainer.accelerator", accelerator, "no GPU is visible here: trainer=cpu")
        self.device = torch.device("cuda" if accelerator == "gpu" else "cpu")
        narrow = {"bf16-mixed": torch.bfloat16}.get(config.precision)
        self.autocast = torch.autocast(self.device.type, dtype=narrow, enabled=narrow is not None)
        self.decoder = build_decoder(config).to(self.device)
        self.optimizer = build_optimizer(self.decoder, config.optim)
        generator = torch.Generator().manual_seed(0)
        shape = (config.budget.batch_size, config.budget.context + 1)
        tokens = torch.randint(0, config.model.vocab_size, shape, generator=generator).to(self.device)
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.clip = float(config.budget.grad_clip)

    def step(self) -> float:
        """Seconds of one training step."""
        self.wait()
        started = time.perf_counter()
        self.backward()
        self.update()
        self.wait()
        return time.perf_counter() - started

    def backward(self) -> None:
        """Loss and gradients."""
        with self.autocast:
            loss = self.decoder.loss(self.inputs, self.targets)
        loss.backward()

    def update(self) -> None:
        """Clipping and the optimizer."""
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(configs: dict[str, DictConfig], rounds: int = ROUNDS) -> pd.DataFrame:
    """One row per arm: median step in ms; median and quartiles of its ratio to PreNorm of the same round."""
    contestants = {name: Contestant(config) for name, config in configs.items()}
    names = list(contestants)
    for name in names:
        contestants[name].step()  # allocations and lazy set-up
    seconds = {name: np.empty(rounds) for name in names}
    for r in range(rounds):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name][r] = contestants[name].step()
    rows = []
    for name in names:
        low, median, high = np.quantile(seconds[name] / seconds[BASELINE], [0.25, 0.5, 0.75])
        rows.append((name, median, low, high, 1e3 * np.median(seconds[name])))
    return pd.DataFrame(rows, columns=COLUMNS).round(4)


def measured_under(config: DictConfig) -> dict[str, object]:
    """What a measurement depends on besides the arm: model, batch, optimizer, execution, machine, code."""
    decides = {key: value for key, value in identity(config).items() if key in _DECIDES}
    decides["runtime"] = {key: config.runtime[key] for key in ("depth_execution", "backend")}
    decides["code"] = source_digest()
    text = json.dumps(decides, sort_keys=True, default=str)
    return {
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "cpu": host_description()["cpu"],
        "device": config.trainer.accelerator,
        "precision": config.precision,
        "torch": torch.__version__,
        "setting": hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def source_digest() -> str:
    """Digest of the code that a step runs: ops, depth, model and the optimizer."""
    package = Path(__file__).resolve().parents[1]
    files = [*(f for part in ("ops", "depth", "model") for f in package.glob(f"{part}/**/*.py"))]
    digest = hashlib.sha256()
    for file in sorted([*files, package / "train" / "optim.py"]):
        digest.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def _kept(path: Path, stamp: dict[str, object]) -> pd.DataFrame:
    """The rows that were measured under this stamp; none where there is no file, or another stamp."""
    table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=COLUMNS)
    same = all(key in table and (table[key].astype(str) == str(value)).all() for key, value in stamp.items())
    return table if same and set(COLUMNS) <= set(table) else pd.DataFrame(columns=[*COLUMNS, *stamp])


def main(overrides: list[str]) -> int:
    """Measure the arms of these overrides and write the table; the exit code."""
    register()
    prepare()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            arms = swept_arms(overrides)
            arms = [BASELINE, *(arm for arm in arms if arm != BASELINE)]
            plain = [o for o in overrides if not o.startswith("arm=")]
            configs = {arm: compose("train", overrides=[*plain, f"arm={arm}"]) for arm in arms}
        for config in configs.values():
            settings.check(config)
            settings.check_device(config)
        first = configs[BASELINE]
        use_threads(first.runtime.threads)
        path = resolve_path(first, first.paths.results) / first.scale / "step_time.csv"
        stamp = measured_under(first)
        kept = _kept(path, stamp)
        missing = [arm for arm in arms if arm not in set(kept["arm"])]
        if not missing:
            print(f"step times: already measured, {path}")
            return 0
        racing = [BASELINE, *(arm for arm in missing if arm != BASELINE)]  # each ratio is of its own race
        print(
            f"step times: {len(racing)} arms, {ROUNDS} interleaved rounds, nothing else should run",
            flush=True,
        )
        new = measure({arm: configs[arm] for arm in racing}).assign(**stamp)  # type: ignore[arg-type]
        new = new[new["arm"].isin(missing)]
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error, overrides)}", file=sys.stderr)
        return 2
    table = pd.concat([kept, new], ignore_index=True) if len(kept) else new
    write_bytes(path, table.to_csv(index=False).encode())
    print(new[COLUMNS].to_string(index=False))
    print(f"step times: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
