"""Which prompts of different clients are the same: the two matchings of PFPT's server.

Every uploaded prompt is a candidate for a global one. A matching gives each prompt of each client a candidate, one to
one within a client; clients that choose the same candidate agree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

RATE, HIDDEN = 1e-3, 128  # of the networks: Adam's rate, and their width
TIE = 1e-9  # what is one place further back must be worth more
LEAST_SPREAD = 0.01  # without a floor, equal prompts have an unbounded density


@dataclass(frozen=True)
class Matching:
    choices: Tensor  # (K, n): the candidate of every prompt
    belief: Tensor  # (M,): how probable a candidate is, to break ties
    candidates: Tensor  # (M, d): where the candidates are in the end


def assign(value: Tensor) -> Tensor:
    """The one-to-one choice of candidates, (n,), with the greatest total of ``value`` (n, M); ties go to the first."""
    from scipy.optimize import linear_sum_assignment  # here: importing it takes longer than importing all methods

    value = value - TIE * torch.arange(value.shape[1], device=value.device)  # not to whichever rounding prefers
    return torch.from_numpy(linear_sum_assignment(value.cpu().numpy(), maximize=True)[1]).to(value.device)


def log_density(prompts: Tensor, means: Tensor, spreads: Tensor) -> Tensor:
    """log N(p; mean, diag(spread^2)) of every prompt (n, d) under every candidate (M, d), up to a constant."""
    precision = spreads**-2
    squares = prompts.square() @ precision.mT - 2 * prompts @ (means * precision).mT
    return -(squares + (means.square() * precision).sum(-1)) / 2 - spreads.log().sum(-1)


def match_by_networks(prompts: Tensor, rng: torch.Generator, sweeps: int, rule: str, drift: bool) -> Matching:
    """PFPT's own: two networks learn how far prompts spread around a candidate and how probable the candidate is.

    Args:
        prompts: of all clients, (K, n, d).
        rng: of the first matching and the networks' first values.
        sweeps: passes over the clients.
        rule: what a candidate is worth besides its density: the log `odds` of its probability, or as in the public
            `code`, the log probability that it is taken or not, as the client just took it or not.
        drift: whether gradients of both networks move the candidates too, away from the prompts they stand for.
    """
    clients, rows, width = prompts.shape
    total = clients * rows

    def layer(outputs: int, inputs: int) -> Tensor:
        draw: Tensor = (2 * torch.rand(outputs, inputs, generator=rng, dtype=torch.float64) - 1) / inputs**0.5
        return draw.to(prompts.device).requires_grad_()

    layers = layer(HIDDEN, width), layer(width, HIDDEN), layer(HIDDEN, width), layer(1, HIDDEN)
    candidates = prompts.flatten(0, 1).clone().requires_grad_()

    def networks(at: Tensor) -> tuple[Tensor, Tensor]:
        at = at if drift else at.detach()
        spreads = LEAST_SPREAD + (1 - LEAST_SPREAD) * ((at @ layers[0].mT).relu() @ layers[1].mT).sigmoid()
        return spreads, ((at @ layers[2].mT).relu() @ layers[3].mT)[..., 0]

    choices = torch.stack([torch.randperm(total, generator=rng)[:rows] for _ in range(clients)]).to(prompts.device)

    @torch.no_grad()
    def rematch(client: int) -> Tensor:
        spreads, logits = networks(candidates)
        worth = logits  # log b - log(1 - b)
        if rule == "code":
            taken = torch.zeros(total, dtype=torch.bool, device=prompts.device).index_fill(0, choices[client], True)
            worth = F.logsigmoid(torch.where(taken, logits, -logits))
        return assign(log_density(prompts[client], candidates, spreads) + worth)

    optimiser = torch.optim.Adam([candidates, *layers], lr=RATE)
    with torch.enable_grad():
        for client in list(range(clients)) * sweeps:
            at = candidates[choices[client]]
            spreads, logits = networks(at)
            fit = -((prompts[client] - at) / spreads).square().sum() / 2 - spreads.log().sum()
            optimiser.zero_grad()
            (-fit - F.logsigmoid(logits).sum()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            choices[client] = rematch(client)
    choices = torch.stack([rematch(client) for client in range(clients)])  # all of them under the same candidates
    with torch.no_grad():
        return Matching(choices, networks(candidates)[1], candidates.detach())


def match_by_counts(prompts: Tensor, rng: torch.Generator, sweeps: int, spread: float) -> Matching:
    """Without networks: one ``spread`` for all; a candidate is the more probable the more other clients hold it."""
    clients, rows, _ = prompts.shape
    total = clients * rows
    choices = torch.arange(total, device=prompts.device).view(clients, rows)
    own = prompts.flatten(0, 1)
    for _ in range(sweeps):
        before = choices.clone()
        for client in torch.randperm(clients, generator=rng).tolist():
            others = [other for other in range(clients) if other != client]
            means, held = means_of_matches(prompts[others], choices[others], own)
            odds = ((held + 1 / total) / (clients - held + 1 - 1 / total)).log()
            choices[client] = assign(log_density(prompts[client], means, torch.full_like(means, spread)) + odds)
        if torch.equal(choices, before):
            break
    means, held = means_of_matches(prompts, choices, own)
    return Matching(choices, held, means)


def means_of_matches(prompts: Tensor, choices: Tensor, default: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the prompts (K, n, d) that chose each candidate, ``default`` (M, d) if none did, and their number."""
    flat, places = prompts.flatten(0, 1), choices.flatten()
    held = torch.bincount(places, minlength=len(default)).to(flat.dtype)
    sums = torch.zeros_like(default).index_add(0, places, flat)
    return torch.where(held[:, None] > 0, sums / held.clamp(min=1)[:, None], default), held
