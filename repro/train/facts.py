"""What every arm says about itself, for Table 5: ``python -m repro.train.facts`` writes it to
``results/published/schemes.json``, which the table is rendered from without torch.

Counts are taken from the schemes: parameters at the shape of the paper's ablation model, state per token in
units of the width. A test says when the file is older than the schemes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from repro.depth.base import DepthMixer
from repro.depth.facts import num_parameters, state_per_token
from repro.errors import ConfigError, DataError
from repro.model.locate import locate, refuse_unknown
from repro.runs import project_root
from repro.runs.atomic import write_bytes
from repro.runs.places import shown
from repro.runs.plain import encode
from repro.train.paths import config_directory

#: The model of Table 4: 16 transformer blocks, L = 2 * 16 sublayers.
NUM_SUBLAYERS, WIDTH = 32, 1168
#: Where the state is walked; a multiple of the heads of every arm.
NARROW = 32
FILE = Path("published") / "schemes.json"


def schemes(arms: Path | None = None) -> dict[str, Any]:
    """The contents of the file: shapes, and one row per YAML in `arms` (default: conf/arm)."""
    rows = [_row(path) for path in sorted((arms or config_directory() / "arm").glob("*.yaml"))]
    return {"num_sublayers": NUM_SUBLAYERS, "width": WIDTH, "schemes": rows}


def _row(path: Path) -> dict[str, Any]:
    arm = yaml.safe_load(path.read_text(encoding="utf-8"))
    options = dict(arm["mixer"])
    target = options.pop("_target_", None)
    scheme = locate("arm.mixer._target_", target, DepthMixer)  # type: ignore[type-abstract]
    refuse_unknown("arm.mixer", scheme, options)
    with torch.device("meta"):
        shaped = scheme(NUM_SUBLAYERS, WIDTH, **options)
    activations, scalars = state_per_token(lambda width: scheme(NUM_SUBLAYERS, width, **options), NARROW)
    return {
        "arm": arm["name"],
        "label": arm["label"],
        "parent": arm["parent"],
        "scheme": target,
        **asdict(shaped.facts()),
        "extra_parameters": num_parameters(shaped),
        "state_activations": activations,
        "state_scalars": scalars,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; exit code 2 and one line where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m repro.train.facts", description=__doc__)
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    path = parser.parse_args(arguments).results / FILE
    try:
        found = schemes()
        write_bytes(path, (encode(found, indent=2) + "\n").encode("utf-8"))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(found['schemes'])} arms: {shown(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
