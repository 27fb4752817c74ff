"""Where a run stands: status.json, replaced atomically at every heartbeat."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

STATES = ("new", "running", "done", "diverged", "failed")


@dataclass(frozen=True)
class Status:
    """State of a run, the last step it reported and when (seconds since the epoch; 0 where it never did)."""

    state: str = "new"
    step: int = 0
    heartbeat: float = 0.0
    message: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state {self.state!r} is not one of {STATES}")

    @property
    def finished(self) -> bool:
        """Whether the run has a result (done or diverged) and is not trained again unless forced."""
        return self.state in ("done", "diverged")

    def as_plain(self) -> dict[str, Any]:
        """As a mapping, for status.json."""
        return asdict(self)

    @classmethod
    def from_plain(cls, value: Any) -> Status:
        """The status a mapping describes; raises ValueError where it describes none."""
        if not isinstance(value, dict):
            raise ValueError("not a mapping")
        state, step = value.get("state"), value.get("step", 0)
        heartbeat, message = value.get("heartbeat", 0.0), value.get("message", "")
        if not isinstance(step, int) or isinstance(step, bool) or not isinstance(message, str):
            raise ValueError("step is not an integer or message is not text")
        if not isinstance(heartbeat, int | float) or not math.isfinite(heartbeat):
            raise ValueError("heartbeat is not a time")
        return cls(str(state), step, float(heartbeat), message)
