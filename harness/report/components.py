"""How far a mean difference may be off: variance components of paired differences, and draws of the error.

Everything here works on arrays of paired differences in points, shaped (..., seeds, clients); clients that a seed does
not have are NaN. ``docs/statistics.md`` explains the choices and gives the measured coverage; in short, the model is

    difference = truth + effect of the seed + effect of the client + rest

where a client number may or may not mean the same client in every seed. The variance by client is computed as if it
did (residuals of one number are added up over seeds before squaring), and never taken to be smaller than if it did
not, so that both readings are covered. The effect of a seed cannot be estimated from two or three seeds of one row; its
size relative to the rest is therefore averaged over all pairs of rows of the table and over a stated prior, with fixed
weights.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fedprompt.core.rng import numpy_rng

Array = NDArray[np.float64]

RESAMPLES = 9999
RESAMPLED_AT_ONCE = 10**7  # values; up to 1,000 clients in one piece
PRIOR_CLIENTS = 20  # prior: the effect of a seed varies as the mean over this many clients does
PRIOR_FREEDOM = 2  # degrees of freedom that the prior counts for
MOST_FREEDOM = 8  # that prior and table together count for at most next to a row's own; rows are not all alike
LEAST_RESIDUAL = 0.1  # of the variance within seeds; the residual is a difference of two estimates and may be negative
COLLAPSED = 0.5  # of no prompt's accuracy, or of a row's best seed: below it, training has spoilt the features
NOTHING = 1e-9  # points: smaller differences are rounding errors


@dataclass(frozen=True)
class Components:
    """Variances of the mean difference, in points squared, each as if it were the only source of error."""

    estimate: Array  # mean over clients within a seed, then over seeds
    by_seed: Array  # from the means of seeds; zero where there is one seed only
    by_client: Array  # from clients, those of one number being the same client in all seeds
    within: Array  # from clients, all of them different ones
    residual: Array  # from what neither seed nor client explains
    seeds: int
    clients: int

    @property
    def ratio(self) -> Array:
        """Variance over seeds relative to what clients alone would cause; near 1 where seeds add nothing."""
        return np.divide(self.by_seed, self.residual, out=np.ones_like(self.by_seed), where=self.residual > NOTHING**2)


@dataclass(frozen=True)
class Pool:
    """The ratio expected of any row of a table, and how many degrees of freedom it is known with."""

    ratio: float
    freedom: float


NO_POOL = Pool(0, 0)  # of a row that takes nothing from others


@dataclass(frozen=True)
class Spread:
    """Standard error of an estimate, with the degrees of freedom it is known with."""

    error: Array
    freedom: Array


def components(differences: Array) -> Components:
    """Of arrays (..., seeds, clients); every seed has at least two clients."""
    seeds, clients = differences.shape[-2:]
    counts = np.sum(~np.isnan(differences), axis=-1)
    means = np.nanmean(differences, axis=-1)
    residuals = np.nan_to_num(differences - means[..., None])
    within = np.sum(np.sum(residuals**2, axis=-1) / (counts * (counts - 1)), axis=-1) / seeds**2
    shares = np.sum(residuals / (seeds * counts[..., None]), axis=-2)
    by_client = clients / (clients - 1) * np.sum(shares**2, axis=-1)
    if seeds == 1:
        return Components(means.mean(axis=-1), np.zeros_like(within), by_client, within, within, seeds, clients)
    residual = np.maximum((seeds * within - by_client) / (seeds - 1), LEAST_RESIDUAL * within)
    by_seed = means.var(axis=-1, ddof=1) / seeds
    return Components(means.mean(axis=-1), by_seed, by_client, within, residual, seeds, clients)


def spread(parts: Components, pool: Pool) -> Spread:
    """Standard error with Satterthwaite's degrees of freedom: clients, plus what seeds add to them."""
    seeds, others = parts.seeds, parts.clients - 1
    by_client = np.maximum(parts.by_client, parts.within)
    doubt = np.where(parts.by_client > parts.within, by_client**2 / others, by_client**2 / (seeds * others))
    if seeds == 1:
        return Spread(np.sqrt(by_client), np.full_like(by_client, others))
    freedom = pool.freedom + seeds - 1
    ratio = (pool.freedom * pool.ratio + (seeds - 1) * parts.ratio) / freedom
    added = np.maximum(ratio - 1, 0) * parts.residual
    doubt = doubt + np.where(ratio > 1, (ratio * parts.residual) ** 2 / freedom, 0) + added**2 / ((seeds - 1) * others)
    # Where clients do not vary there is no scale for the ratio, and the row's own seeds have to do.
    alike = parts.residual <= NOTHING**2
    variance = np.where(alike, parts.by_seed, by_client + added)
    doubt = np.where(alike, parts.by_seed**2 / (seeds - 1), doubt)
    least = np.where(alike, seeds - 1.0, min(freedom, others))
    known = np.divide(variance**2, doubt, out=np.zeros_like(variance), where=doubt > 0)
    return Spread(np.sqrt(variance), np.maximum(known, least))


def has_collapsed(row: Array) -> bool:
    """Whether training failed in some seed: what it did there says nothing about other rows, and vice versa.

    Of measures where lower is better, which are negative here, the seed that is less than half of another one counts.
    """
    means = [abs(np.nanmean(seed)) for seed in row if not np.isnan(seed).all()]
    return bool(means) and bool(min(means) < COLLAPSED * max(means))


def pool_for(row: Array, reference: Array, pool: Pool) -> Pool:
    """What a comparison takes from the rest of its table."""
    return NO_POOL if has_collapsed(row) or has_collapsed(reference) else pool


def pool_rows(accuracies: pd.DataFrame) -> Pool:
    """Mean ratio over all pairs of rows, and the prior; a row that repeats another one counts once.

    Rows that have collapsed do not count.
    """
    table = wide(accuracies.loc[:, ~accuracies.T.duplicated()])
    table = {row: values for row, values in table.items() if not has_collapsed(values)}
    by_shape: dict[tuple[int, ...], list[Array]] = {}
    for one, other in combinations(table.values(), 2):
        array = paired_array(one, other)
        if array.size and array.shape[0] > 1:
            by_shape.setdefault(array.shape, []).append(array)
    parts = [components(np.stack(arrays)) for arrays in by_shape.values()]
    ratios = [part.ratio[part.within > NOTHING**2] * _unbiased(part) for part in parts]
    known = np.concatenate([*ratios, np.empty(0)])
    clients = max((part.clients for part in parts), default=0)
    seeds = max((part.seeds for part in parts), default=1)
    freedom = (len(table) - 1) * (seeds - 1) if len(known) else 0
    prior = 1 + clients / PRIOR_CLIENTS
    mean = float(known.mean()) if len(known) else 0.0
    ratio = (freedom * mean + PRIOR_FREEDOM * prior) / (freedom + PRIOR_FREEDOM)
    return Pool(ratio, min(freedom + PRIOR_FREEDOM, MOST_FREEDOM))


def _unbiased(parts: Components) -> float:
    """A ratio of variances is too large on average by freedom / (freedom - 2) of its denominator."""
    freedom = (parts.seeds - 1) * (parts.clients - 1)
    return max(freedom - 2, 1) / max(freedom, 1)


def wide(accuracies: pd.DataFrame) -> dict[str, Array]:
    """Accuracies of each row as seeds x clients."""
    return {str(row): accuracies[row].unstack(level=1).to_numpy(dtype=float) for row in accuracies}


def paired_array(row: Array, reference: Array) -> Array:
    """Differences in points, seeds x clients; without seeds in which fewer than two clients have both."""
    differences = (100 * (row - reference)).round(9)
    present = ~np.isnan(differences)
    present[present.sum(axis=1) < 2] = False
    return differences[present.any(axis=1)][:, present.any(axis=0)]


def error_draws(differences: Array, error: float, freedom: float) -> Array:
    """Draws of estimate minus truth: clients resampled for the shape, the standard error and its doubt for the size.

    The bootstrap over clients is scaled to variance one, then by the standard error, then by its uncertainty (the
    square root of freedom over chi-squared), which turns a normal shape into Student's t exactly. The generator
    depends on nothing, so equal data give equal bytes and all rows of a table meet the same resamples.
    """
    rng = numpy_rng(0, "evaluation", "intervals")
    seeds, clients = differences.shape
    counts = np.sum(~np.isnan(differences), axis=1, keepdims=True)
    residuals = np.nan_to_num(differences - np.nanmean(differences, axis=1, keepdims=True))
    shares = np.sum(clients * residuals / (seeds * counts), axis=0)
    draws = _bootstrap_means(shares, rng)
    deviation = draws.std()
    shape = draws / deviation if deviation > NOTHING else rng.standard_normal(RESAMPLES)
    return np.asarray(shape * error * np.sqrt(freedom / rng.chisquare(freedom, RESAMPLES)))


def _bootstrap_means(values: Array, rng: np.random.Generator) -> Array:
    if np.ptp(values) <= NOTHING:
        return np.zeros(RESAMPLES)
    batch = max(1, RESAMPLED_AT_ONCE // len(values))  # of many clients, the resamples do not fit into memory together
    result = stats.bootstrap(
        (values,), np.mean, axis=-1, n_resamples=RESAMPLES, batch=batch, method="percentile", vectorized=True, rng=rng
    )
    return np.asarray(result.bootstrap_distribution - values.mean())
