"""Files of one rendered item: table, picture, and where every number came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis import style, tables
from repro.errors import DataError
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

    A ``DataError`` where the directory cannot be written.
    """
    stem = directory / name
    forms = {
        ".csv": tables.to_csv(records),
        ".md": tables.to_markdown(text) + f"\n![{name}]({name}.svg)\n",
        ".tex": tables.to_tex(text),
        ".provenance.json": json.dumps({**provenance, "git": git_state()}, indent=2) + "\n",
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for suffix, content in forms.items():
            path = directory / (name + suffix)
            path.write_text(content, encoding="utf-8")
            paths.append(path)
        return [*paths[:3], *style.save(figure, stem), paths[3]]
    except OSError as error:
        raise DataError(f"{stem}: cannot be written ({error.strerror}); choose another --results") from None
