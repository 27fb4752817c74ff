"""The records that open and close a run: meta.json, final.json, and the losses of validation documents."""

from __future__ import annotations

import hashlib
from typing import Any

import lightning as L
import numpy as np
import torch
from omegaconf import DictConfig

from repro.data.batches import ValidationWindows
from repro.data.losses import summarise
from repro.depth.base import pick_backend
from repro.model.decoder import Decoder
from repro.model.lit import Diverged, LitDecoder
from repro.ops.matmul import matmul_library
from repro.runs import Run, command_line, git_state, host_description
from repro.train.evaluate import document_losses


def write_meta(run: Run, config: DictConfig, decoder: Decoder, fingerprint: str) -> None:
    """meta.json: what may change bits or speed, but not meaning."""
    run.write_json(
        "meta.json",
        {
            "git": git_state(),
            "host": host_description(),
            "command": command_line(),
            "data_fingerprint": fingerprint,
            "device": config.trainer.accelerator,
            "devices": config.trainer.devices,
            "precision": config.precision,
            "backend": pick_backend(
                decoder.mixer.backend, next(decoder.parameters()).device, bool(config.runtime.compile)
            ),
            "depth_execution": decoder.mixer.execution,
            "compile": bool(config.runtime.compile),
            "matmul": matmul_library(),
            "threads": torch.get_num_threads(),
            **account(decoder),
        },
    )


def subset_row(windows: ValidationWindows, trainer: L.Trainer, module: LitDecoder) -> dict[str, Any]:
    """Losses on the fixed validation subset as a metrics row."""
    sums = _validate(windows, trainer, module)
    return {"subset": True, **summarise(sums, windows.tokens, windows.num_bytes, windows.source)}


def write_results(
    run: Run,
    trainer: L.Trainer,
    module: LitDecoder,
    whole: ValidationWindows,
    steps: int,
    tokens_per_step: int,
) -> dict[str, Any]:
    """Validate on every document and write val_losses.npz and final.json; the latter's contents.

    Raises Diverged where the loss of a document is not finite.
    """
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU when fitting ends
    sums = _validate(whole, trainer, module)
    if not np.isfinite(sums).all():
        raise Diverged(steps, float(sums.sum()), float("nan"))
    scores = summarise(sums, whole.tokens, whole.num_bytes, whole.source)
    run.write_arrays(
        "val_losses.npz",
        loss_sum=sums,
        tokens=whole.tokens,
        bytes=whole.num_bytes,
        source=whole.source,
        doc_id=whole.doc_id,
    )
    final = {
        "status": "done",
        "step": steps,
        "tokens": steps * tokens_per_step,
        "val_loss": scores["loss"],
        "val_bpb": scores["bpb"],
        "val_loss_by_source": {s: v["loss"] for s, v in scores["by_source"].items()},
        "val_bpb_by_source": {s: v["bpb"] for s, v in scores["by_source"].items()},
        "weights_sha256": weights_sha256(module.decoder),
        **account(module.decoder),
    }
    run.write_json("final.json", final)
    return final


def account(decoder: Decoder) -> dict[str, Any]:
    """Parameters and training FLOPs per token."""
    return {
        "parameters": decoder.num_parameters(),
        "mixer_parameters": sum(p.numel() for p in decoder.mixer.parameters()),
        "flops_per_token": decoder.flops_per_token(),
    }


def weights_sha256(decoder: Decoder) -> str:
    """Digest of all weights, by name: equal digests mean bit-identical training."""
    digest = hashlib.sha256()
    for name, tensor in sorted(decoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _validate(windows: ValidationWindows, trainer: L.Trainer, module: LitDecoder) -> np.ndarray:
    device = next(module.decoder.parameters()).device
    with trainer.precision_plugin.forward_context():
        return document_losses(module.decoder, windows, windows.num_documents, device)
