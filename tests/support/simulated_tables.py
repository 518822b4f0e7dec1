"""Accuracies as a table of runs would give them, with a known truth."""

import numpy as np
import pandas as pd

CONTROL = "no-prompt"


def simulated_table(
    number: int,
    seeds: int = 2,
    clients: int = 20,
    rows: int = 4,
    images: int = 80,
    seed_effect: float = 1.0,
    client_effect: float = 3.0,
    same_clients: bool = True,
    gain: float = 0.0,
) -> pd.DataFrame:
    """Index (seed, client), the control and ``rows`` - 1 methods, of which `method-1` is better by ``gain`` points.

    Effects are standard deviations in points that each row draws for itself; clients and seeds also shift all rows
    alike. Test images are counted independently for every row, which makes differences noisier than real ones.
    """
    rng = np.random.default_rng(number)
    per_seed = 1 if same_clients else seeds
    level = 0.6 + rng.normal(0, 0.12, (per_seed, clients)) + rng.normal(0, 0.02, (seeds, 1))
    row_effects = rng.normal(0, seed_effect, (rows, seeds, 1)) + rng.normal(0, client_effect, (rows, per_seed, clients))
    row_effects[1] += gain
    chance = np.clip(level + row_effects / 100, 0.02, 0.98)
    accuracies = rng.binomial(images, chance) / images
    index = pd.MultiIndex.from_product([range(seeds), range(clients)], names=["seed", "client"])
    names = [CONTROL, *(f"method-{row}" for row in range(1, rows))]
    return pd.DataFrame(accuracies.reshape(rows, -1).T, index=index, columns=names)
