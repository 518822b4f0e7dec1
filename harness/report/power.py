"""The smallest difference that a table can find, by simulation from its own records.

A row's paired differences are taken apart into means of seeds and residuals of clients. Clients are resampled (a
client number stays together over seeds), each seed gets a normal shift of the size that `components` estimates, and
the comparison is made again; what is left over the critical value says how large a true difference would have been
found in this resample. The difference that four of five resamples find has 80 % power. Clients' residuals contain the
noise of their test images.
"""

import numpy as np
import pandas as pd
from scipy import stats

from fedprompt.core.rng import numpy_rng
from fedprompt.harness.report.components import (
    Array,
    Pool,
    components,
    has_collapsed,
    paired_array,
    pool_for,
    pool_rows,
    spread,
    wide,
)
from fedprompt.harness.report.inference import LEVEL

POWER = 0.8
SIMULATIONS = 1000


def smallest_detectable(
    accuracies: pd.DataFrame, control: str, comparisons: int | None = None, test_images: int | None = None
) -> float:
    """The true difference in points that is found with 80 % power, for the median row; NaN without any to compare.

    The level is divided by ``comparisons``, by default the number of rows other than ``control`` (Bonferroni: the first
    step of Holm's rule, its strictest). ``test_images`` per client bounds the answer from below: a
    true difference shows in at least that share of the test images, and which ones is chance, however equal the
    records look.
    """
    pool = pool_rows(accuracies)
    count = comparisons or max(accuracies.shape[1] - 1, 1)
    table = wide(accuracies)
    others = [values for row, values in table.items() if row != control]
    steady = [values for values in others if not has_collapsed(values)]  # of the rest, no difference can be detected
    pairs = [(values, paired_array(values, table[control])) for values in steady or others]
    per_row = [
        _detectable(differences, pool_for(values, table[control], pool), count)
        for values, differences in pairs
        if np.nan_to_num(differences).any()
    ]
    least = _from_images([differences for _, differences in pairs], count, test_images)
    return float(np.fmax(np.median(per_row), least)) if per_row else least


def _detectable(differences: Array, pool: Pool, comparisons: int) -> float:
    simulated = components(_resampled(differences, pool))
    size = spread(simulated, pool)
    critical = stats.t.isf(LEVEL / (2 * comparisons), size.freedom)
    return float(np.quantile(critical * size.error - simulated.estimate, POWER))


def _resampled(differences: Array, pool: Pool) -> Array:
    """Tables without a true difference, (simulations, seeds, clients)."""
    rng = numpy_rng(0, "evaluation", "power")
    seeds, clients = differences.shape
    parts = components(differences)
    total = spread(parts, pool).error ** 2
    shift = np.sqrt(seeds * np.maximum(total - np.maximum(parts.by_client, parts.within), 0))
    residuals = differences - np.nanmean(differences, axis=1, keepdims=True)
    for seed in residuals:  # a client that a seed lacks gets the residual of another one
        missing = np.isnan(seed)
        seed[missing] = rng.choice(seed[~missing], missing.sum())
    # Resampling n residuals around their own mean loses one part in n of the variance.
    residuals = residuals * np.sqrt(clients / (clients - 1))
    draws = rng.integers(clients, size=(SIMULATIONS, clients))
    return np.asarray(residuals[:, draws].swapaxes(0, 1) + shift * rng.standard_normal((SIMULATIONS, seeds, 1)))


def _from_images(arrays: list[Array], comparisons: int, test_images: int | None) -> float:
    """The difference d that solves d = (z + z') sqrt(d (1 - d) / images), in points."""
    images = (test_images or 0) * max((int(np.sum(~np.isnan(array))) for array in arrays), default=0)
    if images == 0:
        return float("nan")
    needed = (stats.norm.isf(LEVEL / (2 * comparisons)) + stats.norm.ppf(POWER)) ** 2
    return float(100 * needed / (images + needed))
