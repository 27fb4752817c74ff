"""W&B as a mirror: rows go out as they are written, and nothing is ever read back.

Offline by default, which needs no account. A failure here is reported once and never stops a run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SINGLE = "single"  # group of runs that no experiment named


class Mirror:
    """Sends metrics rows of one run to W&B; the connection is opened by the first row.

    settings: config group `logger` (`mode` offline | online | disabled, `project`).  The run's id
    is its identity, so that a resumed run continues the same W&B run; its group is the item that it was first
    trained for (`group`, by default the experiment of the command), its job type the scale, its tags scale
    and arm.
    """

    def __init__(
        self, settings: Mapping[str, Any], config: Mapping[str, Any], run_id: str, directory: Path
    ) -> None:
        self.settings, self.config, self.run_id, self.directory = (
            dict(settings),
            dict(config),
            run_id,
            directory,
        )
        self._run: Any = None
        self._broken = self.settings["mode"] == "disabled"

    def __call__(self, row: Mapping[str, Any]) -> None:
        if self._broken:
            return
        try:
            if self._run is None:
                self._run = self._open()
            flat = _flatten({row["kind"]: {k: v for k, v in row.items() if k not in ("kind", "step")}})
            self._run.log(flat, step=int(row["step"]))
        except Exception as error:  # a mirror may fail in any way; the run may not
            self._give_up(error)

    def finish(self, final: Mapping[str, Any] | None = None) -> None:
        """Close the mirror; call it in `finally`."""
        run, self._run = self._run, None
        if run is not None:
            try:
                run.summary.update(_flatten({"final": dict(final or {})}))
                run.finish()
            except Exception as error:
                self._give_up(error)

    def _open(self) -> Any:
        import wandb

        self.directory.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.settings["project"],
            mode=self.settings["mode"],
            id=self.run_id,
            resume="allow",
            name=f"{self.config['arm']['name']}-seed{self.config['seed']}",
            group=self.settings.get("group") or SINGLE,
            job_type=str(self.config["scale"]),
            tags=[str(self.config["scale"]), str(self.config["arm"]["name"])],
            config={k: v for k, v in self.config.items() if k not in ("paths", "hydra")},
            dir=str(self.directory),
            # No host, user, command line, code or environment leaves with the numbers.
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_disable_meta=True,
                x_disable_stats=True,
                disable_git=True,
                save_code=False,
            ),
        )

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        print(f"logger: W&B mirror is off for this run: {reason}", file=sys.stderr, flush=True)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
