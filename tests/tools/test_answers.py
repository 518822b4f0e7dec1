"""What a published run answers, from planted accuracies."""

import dataclasses
from pathlib import Path

import answers as module
import numpy as np
import pandas as pd
import pytest
from answers import answers, collapses, has_prompts

from fedprompt.harness.report.papers import load_papers

PRINTED = {"Head-Tune": 70, "FedVPT": 72, "FedVPT-D": 74, "pFedPG": 76, "SGPT": 78, "pFedBayesPT": 80}
ROWS = {  # row: title, accuracy; the order is the printed one
    "head-tune": ("No prompt", 0.50),
    "fedvpt": ("FedVPT", 0.55),
    "fedvpt-d": ("FedVPT-D", 0.60),
    "pfedpg": ("pFedPG", 0.65),
    "sgpt": ("SGPT", 0.70),
    "pfedbayespt": ("pFedBayesPT", 0.75),
}


def accuracies(levels: dict[str, float], kind: str = "heterogeneity", **columns: object) -> pd.DataFrame:
    """Three seeds and ten clients around a level per row; clients share their luck."""
    rng = np.random.default_rng(0)
    luck, noise = rng.normal(0, 0.05, (3, 10)), rng.normal(0, 0.002, (len(levels), 3, 10))
    lines = [
        {"kind": kind, "setting": "m=1", "policy": "global", "row": row, "title": ROWS.get(row, (row,))[0]}
        | {"method": row, "samples": 0, "seed": seed, "client": client}
        | {"accuracy": level + luck[seed, client] + noise[place, seed, client]}
        | columns
        for place, (row, level) in enumerate(levels.items())
        for seed in range(3)
        for client in range(10)
    ]
    return pd.DataFrame(lines)


def numbers(**gains: tuple[float, float]) -> pd.DataFrame:
    """The lines of tables.csv: gain and adjusted p-value by row."""
    lines = [
        {"kind": "heterogeneity", "metric": "average", "setting": "m=1", "policy": "global", "method": row}
        | {"title": row, "gain": gain, "gain_low": gain - 1, "gain_high": gain + 1, "gain_p_adjusted": p}
        | {"smallest_detectable": 2.5, "seeds": 3, "seeds_expected": 3, "partition": "domains:m=1"}
        for row, (gain, p) in gains.items()
    ]
    return pd.DataFrame(lines)


def runs(**accuracy: float) -> pd.DataFrame:
    """The lines of cells.csv, as far as collapses need them."""
    same = {"kind": "heterogeneity", "setting": "m=1", "reading": "global", "status": "finished", "unseen_average": 0.0}
    same |= {"dataset": "d", "partition": "p", "seed": 0}
    averages = {"head-tune": 0.8, "fedvpt": 0.7} | accuracy
    return pd.DataFrame([same | {"method": m, "cell": m, "average": value} for m, value in averages.items()])


def text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frame: pd.DataFrame, table: pd.DataFrame) -> str:
    table.to_csv(tmp_path / "tables.csv", index=False)
    runs().to_csv(tmp_path / "cells.csv", index=False)
    values = [
        {"table": 1, "dataset": "DomainNet", "label": "m=1", "metric": "Average"} | {"method": method, "value": value}
        for method, value in PRINTED.items()
    ]
    monkeypatch.setattr(module, "client_accuracies", lambda _: frame)
    paper = dataclasses.replace(load_papers(Path())["vit"], values=pd.DataFrame(values))
    monkeypatch.setattr(module, "load_papers", lambda _: {"vit": paper})
    return answers(tmp_path)


def test_a_part_that_matters_is_significant_and_one_that_does_not_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    levels = {"pfedbayespt": 0.65, "full-without-mixture": 0.60, "d-with-masks": 0.6, "pfedbayespt-d": 0.6}
    said = text(monkeypatch, tmp_path, accuracies(levels, "ablation"), numbers(fedvpt=(0.0, 1.0)))
    _, mixture, masks, *_ = said.splitlines()[::2]
    assert "Significant in 1 of 1 columns (†): m=1, global head +5.0 (4.9 to 5.1)†." in mixture
    assert "Do masks" in masks
    assert "No significant difference in the one column: m=1, global head" in masks


def test_draws_are_compared_within_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, ten = (accuracies({"pfedbayespt": level}, "vsweep", samples=v) for v, level in ((1, 0.6), (10, 0.62)))
    said = text(monkeypatch, tmp_path, pd.concat([one, ten]), numbers(fedvpt=(0.0, 1.0)))
    assert "number of draws V (10 against 1)?** Significant in 1 of 1 columns (†): m=1, global head +2.0" in said


def test_gains_of_prompt_methods_stand_apart_from_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gains = {"fedvpt": (3.0, 0.01), "sgpt": (-2.0, 0.02), "pfedpg": (1.0, 0.4), "fedsa-lora": (9.0, 0.2)}
    said = text(monkeypatch, tmp_path, accuracies({"fedvpt": 0.5}), numbers(**gains))
    assert "beat no prompt under the same policy?** In 1 of 1 columns." in said
    assert "1 of 3 gains: fedvpt +3.0 (2.0 to 4.0); 1 of 3 loses: sgpt −2.0 (−3.0 to −1.0)." in said
    assert "no significant difference for any of 1; 2.5 points could have been found." in said


@pytest.mark.parametrize(("direction", "verdict"), [(1, "τ = 1.00 (1.00 to 1.00; p = 0.00)"), (-1, "τ = −1.00")])
def test_the_printed_order_and_its_reverse_are_significant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, direction: int, verdict: str
) -> None:
    levels = {row: 0.5 + direction * (level - 0.5) for row, (_, level) in ROWS.items()}
    said = text(monkeypatch, tmp_path, accuracies(levels), numbers(fedvpt=(0.0, 1.0)))
    assert f"- m=1, global head, compared with DomainNet, m=1: {verdict}" in said
    assert f"over 6 methods: {'agree' if direction > 0 else 'contradict each other'}." in said


def test_equal_methods_have_no_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = text(monkeypatch, tmp_path, accuracies(dict.fromkeys(ROWS, 0.5)), numbers(fedvpt=(0.0, 1.0)))
    assert "no significant agreement" in said


def test_what_is_incomplete_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = numbers(fedvpt=(0.0, 1.0)).assign(seeds=2)
    said = text(monkeypatch, tmp_path, accuracies({"fedvpt": 0.5}), table)
    assert said.startswith("**Incomplete:** 1 of 1 numbers lack seeds.")


def test_collapsed_runs_are_counted_by_setting(tmp_path: Path) -> None:
    numbers(fedvpt=(0.0, 1.0)).to_csv(tmp_path / "tables.csv", index=False)
    runs(sgpt=0.39, pfedpg=0.41).to_csv(tmp_path / "cells.csv", index=False)
    assert collapses(tmp_path).endswith("?** 1 of 4: 1 at m=1.")
    runs().to_csv(tmp_path / "cells.csv", index=False)
    assert collapses(tmp_path).endswith("?** None of 2.")


def test_adapters_are_no_prompts() -> None:
    assert has_prompts("pep-fedpt")
    assert not has_prompts("fed-adapter")
