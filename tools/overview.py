"""Gains over no prompt in several published runs at once: the first table of docs/results.md."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from answers import with_gain

from fedprompt.harness.report.document import MISSING
from fedprompt.harness.report.inference import LEVEL


def overview(folders: Sequence[Path]) -> str:
    """In how many columns each method gains and loses, with its median gain; a column is a setting under a policy."""
    gains = {folder.name: with_gain(pd.read_csv(folder / "tables.csv")) for folder in folders}
    titles = dict.fromkeys(title for run in gains.values() for title in run["title"])
    rows = [[title, *(_entry(run[run["title"] == title]) for run in gains.values())] for title in titles]
    heads = ["", *(f"`{name}`" for name in gains)]
    note = (
        "Significant gains / significant losses / comparisons, one per column (a setting under one head policy), and "
        "the median gain over no prompt in points. Significant at 5 %, adjusted for all comparisons of a column, but "
        "not for the number of columns."
    )
    table = [f"| {' | '.join(cells)} |" for cells in (heads, ["---", *["---:"] * len(gains)], *rows)]
    return "\n".join([*table, "", note]) + "\n"


def _entry(gains: pd.DataFrame) -> str:
    if gains.empty:
        return MISSING
    significant = gains["gain_p_adjusted"] < LEVEL
    won, lost = int((significant & (gains["gain"] > 0)).sum()), int((significant & (gains["gain"] < 0)).sum())
    return f"{won} / {lost} / {len(gains)}, {gains['gain'].median():+.1f}".replace("-", "−")
