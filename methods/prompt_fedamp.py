"""Prompt+FedAMP: every client has its own context, pulled towards a mixture of those that are like it.

The server keeps what each client uploaded last. Weights of the others are alpha/sigma exp(-d^2/sigma) of the squared
distance d^2, a client's own weight is the rest. By default sigma is the median squared distance and alpha = sigma/N,
which keeps all weights in [0, 1]; fixed values need not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._mixins import Downloads, UnseenClients
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class FedAMPParams(TextParams):
    sigma: float | None = option(
        None, "squared distance at which contexts no longer attract; none means the median", low=0, paper="unpublished"
    )
    alpha: float | None = option(None, "strength of the attraction; none means sigma/N", low=0, paper="unpublished")
    pull: float = option(1.0, "pull towards the mixture, lambda/alpha", low=0, grid=(0.1, 1.0), paper="unpublished")


class PromptFedAMP(TextMethod, Downloads, UnseenClients):
    """`context` is what the client has kept since its last visit, so that only the mixture is sent to it."""

    name = "prompt-fedamp"
    title = "Prompt+FedAMP"
    order = 230
    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data (AAAI 2021), on prompts"
    payload_formula = "m*d_t each way"
    Params = FedAMPParams

    def init_server(self, rng: torch.Generator) -> State:
        clients = self.task.num_clients
        return {"pool": self.first_context(rng).repeat(clients, 1, 1), "known": torch.zeros(clients)}

    def rates(self) -> dict[str, float]:
        return {"context": self.params.lr}

    def mixing(self, server: State) -> Tensor:
        """How much of each client's context (columns) is in each client's mixture (rows), (N, N)."""
        flat, known = server["pool"].flatten(1).double(), server["known"].double()
        squares = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        both_known = known[:, None] * known > 0
        median = torch.where(both_known & (squares > 0), squares, torch.nan).nanmedian().nan_to_num(1.0)
        sigma = median if self.params.sigma is None else self.params.sigma
        alpha = sigma / len(flat) if self.params.alpha is None else self.params.alpha
        itself = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        others = alpha / sigma * torch.exp(-squares / sigma) * known * (1 - itself)
        return others + itself * (1 - others.sum(1))

    def download(self, server: State, clients: Sequence[int]) -> State:
        rows, pool = list(clients), server["pool"]
        mixture = torch.einsum("ij,jmd->imd", self.mixing(server)[rows], pool.double()).to(pool.dtype)
        return {"context": pool[rows], "mixture": mixture}

    def sent_tensors(self, received: State, position: int) -> State:
        return {"mixture": received["mixture"][position]}

    def unseen_download(self, server: State, clients: Sequence[int]) -> State:
        weights = server["known"] / server["known"].sum().clamp(min=1)
        mean = torch.einsum("n,nmd->md", weights, server["pool"])
        start = torch.where(server["known"].any(), mean, server["pool"][0]).expand(len(clients), -1, -1)
        return {"context": start, "mixture": start}

    def loss(self, theta: State, batch: Batch) -> Tensor:
        distance = (theta["context"] - theta["mixture"]).flatten(1)
        penalty: Tensor = self.params.pull / 2 * distance.square().sum(1)
        return super().loss(theta, batch) + penalty

    def upload(self, theta: State, received: State) -> State:  # noqa: ARG002
        return {"context": theta["context"]}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:  # noqa: ARG002
        rows = torch.tensor(list(clients), device=server["pool"].device)
        known = server["known"].index_fill(0, rows, 1.0)
        return {"pool": server["pool"].index_copy(0, rows, uploads["context"]), "known": known}
