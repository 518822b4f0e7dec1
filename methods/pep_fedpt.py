"""PEP-FedPT (reconstruction): a token mixed from class prompts by global prototypes and the client's class prior.

Only the abstract was at hand. It says: a shared prompt, class prompts mixed for each input with weights from global
class prototypes and client class priors, nothing trainable that stays with a client, federated averaging. All the rest
is ours (docs/methods.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import Edit, FrozenViT, insert
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import HeadedMethod, PromptParams
from fedprompt.methods._mixins import Statistics, StopGradients


@dataclass(frozen=True)
class PEPParams(PromptParams):
    insert_block: int = option(0, "block (from 0) the mixed token enters; 0 means L // 2", low=0, grid=(3, 6, 9))
    tau: float = option(0.1, "temperature of the cosine with the prototypes", low=1e-3, grid=(0.05, 0.1, 0.5))
    smoothing: float = option(0.0, "images added to each class of the prior; 0 masks absent classes", low=0)
    proto_momentum: float = option(0.5, "share of an old prototype the server keeps", low=0, high=1)
    detach_weights: bool = option(True, "no gradient through the mixing weights")
    class_weighted_agg: bool = option(False, "average class prompts by the clients' images of the class")


class PEPFedPT(HeadedMethod, Statistics, StopGradients):
    """Shared: a prompt, a prompt per class, and prototypes, which the server makes of the clients' sums."""

    name = "pep-fedpt"
    title = "PEP-FedPT (reconstruction)"
    order = 70
    paper = "PEP-FedPT: Prompt Estimation from Prototypes (arXiv 2510.25372); reconstructed from its abstract"
    payload_formula = "(T + 2*C)*d down, (T + 2*C)*d + C up"
    needs = frozenset({"images", "prompts"})
    Params = PEPParams
    paper_policy = "global"
    fixed_inputs = True
    stop_gradients: ClassVar = {"prompt": "it moves the query, and the mixing weights are constants"}

    def __init__(self, params: PEPParams, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.block = params.insert_block or backbone.depth // 2
        if not 1 <= self.block < backbone.depth:
            raise UserError(f"pep-fedpt: insert_block = {self.block} is not a block from 1 to {backbone.depth - 1}.")

    # -- state: prompt (T, d), classes (C, d), prototypes (C, d); nothing stays with a client ----------------------

    def init_prompts(self, rng: torch.Generator) -> State:
        classes, width = self.task.num_classes, self.backbone.width
        return {
            "prompt": self.draw_prompts((self.params.length, width), rng, [0]),
            "classes": self.draw_prompts((classes, width), rng, [self.block]),
            "prototypes": torch.zeros(classes, width),  # zero: not there yet, and then its cosine is 0
        }

    def rates(self) -> dict[str, float]:
        return self.rates_of("prompt", "classes")

    # -- the client ------------------------------------------------------------------------------------------------

    def features(self, theta: State, batch: Batch) -> Tensor:
        return batch.pad(self.backbone.cls(batch.images, self.edit(theta, batch)))

    def edit(self, theta: State, batch: Batch) -> Edit:
        """The shared prompt before block 0; before block l* the token that the CLS row of this very pass asks for."""
        prompt = batch.rows(theta["prompt"])

        def edit(block: int, tokens: Tensor) -> Tensor:
            if block == 0:
                return insert(tokens, prompt)
            if block != self.block:
                return tokens
            weights = self.mixing(batch.pad(tokens[:, 0]), theta["prototypes"], batch.clients)
            return insert(tokens, batch.pack(torch.einsum("kbc,kcd->kbd", weights, theta["classes"]))[:, None])

        return edit

    def mixing(self, query: Tensor, prototypes: Tensor, clients: Sequence[int]) -> Tensor:
        """Weights of the class prompts, (K, B, C): softmax of log prior + cosine / tau, 0 for absent classes."""
        query = query.detach() if self.params.detach_weights else query
        cosine = torch.einsum("kbd,kcd->kbc", F.normalize(query, dim=-1), F.normalize(prototypes, dim=-1))
        return torch.softmax(self.prior(clients).to(query).log()[:, None] + cosine / self.params.tau, dim=-1)

    def prior(self, clients: Sequence[int]) -> Tensor:
        """Class shares of the clients' own training labels, (K, C)."""
        counts: Tensor = self.task.train_counts[list(clients)].double() + self.params.smoothing
        return counts / counts.sum(-1, keepdim=True)

    @torch.no_grad()
    def end_visit(self, theta: State, batches: Iterable[Batch]) -> State:
        """Sums of the queries of each class, (K, C, d), and their number, (K, C)."""
        sums, counts = torch.zeros_like(theta["prototypes"]), torch.zeros_like(theta["prototypes"][..., 0])
        for batch in batches:
            member = F.one_hot(batch.labels, self.task.num_classes).to(sums) * batch.mask[..., None]
            sums = sums + torch.einsum("kbc,kbd->kcd", member, self.queries(theta, batch))
            counts = counts + member.sum(1)
        return {"sums": sums, "counts": counts}

    def queries(self, theta: State, batch: Batch) -> Tensor:
        """The CLS rows entering block l*, (K, B, d)."""
        rows: list[Tensor] = []
        prompt = batch.rows(theta["prompt"])

        def edit(block: int, tokens: Tensor) -> Tensor:
            if block == self.block:
                rows.append(tokens[:, 0])
            return insert(tokens, prompt) if block == 0 else tokens

        self.backbone.cls(batch.images, edit, stop=self.block + 1)
        return batch.pad(rows[0])

    # -- the server ------------------------------------------------------------------------------------------------

    def upload(self, theta: State, received: State) -> State:
        trained = {name: theta[name] for name in received if name != "prototypes"}
        return {**trained, "sums": theta["sums"], "counts": theta["counts"]}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        trained = {name: stack for name, stack in uploads.items() if name in server}
        new = super().aggregate(server, trained, weights, clients)
        sums, counts = uploads["sums"].double(), uploads["counts"].double()
        total = counts.sum(0)[:, None]
        if self.params.class_weighted_agg:
            mean = torch.einsum("kc,kcd->cd", counts, uploads["classes"].double()) / total.clamp(min=1)
            new["classes"] = torch.where(total > 0, mean.to(new["classes"].dtype), new["classes"])
        return {**new, "prototypes": updated(server["prototypes"], sums.sum(0), total, self.params.proto_momentum)}


def updated(old: Tensor, sums: Tensor, counts: Tensor, momentum: float) -> Tensor:
    """Prototypes moved towards the round's class means; a first mean is taken whole, no data changes nothing."""
    mean = (sums / counts.clamp(min=1)).to(old.dtype)
    moved = torch.where(old.any(-1, keepdim=True), torch.lerp(mean, old, momentum), mean)
    return torch.where(counts > 0, moved, old)
