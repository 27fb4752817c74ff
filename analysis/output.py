"""Files of one rendered item: table, picture, and where every number came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis import style, tables
from repro.runs.atomic import write_bytes
from repro.runs.meta import git_state


def write_item(
    directory: Path,
    name: str,
    *,
    records: Sequence[Mapping[str, object]],
    text: Sequence[tables.Table],
    figure: Figure,
    provenance: Mapping[str, object],
) -> list[Path]:
    """Write ``<directory>/<name>.{csv,md,tex,svg,png,provenance.json}`` and return the paths.

    Each file is its earlier version or the new one, never a part.  A ``DataError`` where the directory cannot
    be written.
    """
    stem = directory / name
    forms = {
        ".csv": tables.to_csv(records),
        ".md": tables.to_markdown(text) + f"\n![{name}]({name}.svg)\n",
        ".tex": tables.to_tex(text),
        ".provenance.json": json.dumps({**provenance, "git": git_state()}, indent=2) + "\n",
    }
    paths = [
        write_bytes(directory / (name + suffix), content.encode("utf-8")) for suffix, content in forms.items()
    ]
    return [*paths[:3], *style.save(figure, stem), paths[3]]
