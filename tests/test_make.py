"""What `make all` leaves out is done by what it does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def names(variable: str) -> list[str]:
    found = re.search(rf"^{variable}\s*:=(.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return found[1].split()


def swept(experiment: str) -> dict[str, set[str]]:
    """Key -> values of an experiment's sweep."""
    path = ROOT / "conf" / "experiment" / f"{experiment}.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
    return {key: set(values.split(",")) for key, values in params.items()}


def test_shared_items_show_runs_of_table_2_table_4_and_fig_6() -> None:
    order, shared = names("ITEMS"), names("SHARED")
    assert set(shared) < set(order)
    arms = {name: swept(name)["arm"] for name in ("table4", "fig6")}
    for name in shared:
        sweep, before = swept(name), order[: order.index(name)]
        if "ladder" in sweep:
            assert sweep == swept("table2")
            assert "table2" in before
            continue
        assert set(sweep) == {"arm"}, name
        trained = set().union(*(arms[other] for other in arms if other in before))
        assert sweep["arm"] <= trained, name


def test_step_times_of_raced_items_are_those_of_tradeoff() -> None:
    for name in names("RACED"):
        assert f"BEFORE_{name} " in MAKEFILE
        assert swept(name)["arm"] <= swept("tradeoff")["arm"]
