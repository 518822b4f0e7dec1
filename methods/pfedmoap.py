"""pFedMoAP: a client's own context and the contexts of its nearest clients are experts; attention mixes them per image.

A client's first visit is PromptFL's. From then on the server sends it, with the mean, the last uploads that are
nearest to its own, as fixed experts. The gate that mixes their class features never leaves the client.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._attention import attention_init
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._experts import mix, nearest
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import Downloads, Stages, Steps, UnseenClients
from fedprompt.methods._text import CLASSES, TextMethod, TextParams

GATE = ("gate.weight", "gate.bias")
EXPERTS = "expert features"  # in ``batch.start`` (or theta, for an unseen client): (K, E, C, d), of constant contexts


@dataclass(frozen=True)
class PFedMoAPParams(TextParams):
    experts: int = option(9, "experts K that a client downloads; fewer if fewer clients are known", low=0, paper="9")
    local_weight: float = option(0.5, "lambda, weight of the own context's plain logits", low=0, paper="0.5, 0")
    gate_lr: float = option(0.01, "learning rate of the gate", low=0, paper="0.01")
    gate_width: int = option(128, "features are reduced to so many coordinates before the gate", low=1, paper="128")
    heads: int = option(8, "attention heads of the gate", low=1, paper="8")
    kappa: float = option(10.0, "scale of attention; 0 means 1/sqrt(width of a head)", low=0, paper="10 in the code")
    gate_norm: str = option("none", "normalise before the gate's cosine", choices=("none", "cosine"), paper="none")
    pool: str = option("stride", "how features are reduced", choices=("stride", "mean"), paper="stride")


class PFedMoAP(TextMethod, Downloads, Stages, Steps, UnseenClients):
    """Server: the mean context and everybody's last one. Private: the gate and the experts of the last visit."""

    name = "pfedmoap"
    title = "pFedMoAP"
    order = 260
    paper = "Luo et al., Mixture of Experts Made Personalized: Federated Prompt Learning for ... (ICLR 2025)"
    payload_formula = "(1 + K)*m*d_t down, m*d_t up, K = 0 at the first visit"
    Params = PFedMoAPParams

    def __init__(self, params: PFedMoAPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.experts = min(int(params.experts), task.num_clients - 1)
        self.gate_width = min(int(params.gate_width), backbone.dim)
        if self.gate_width % params.heads or backbone.dim % self.gate_width:
            raise UserError(
                f"pfedmoap: gate_width = {self.gate_width} must divide the {backbone.dim} dimensions of backbone "
                f"{backbone.name!r} and be divisible by heads = {params.heads}."
            )

    # -- state: the server knows everybody's last upload; a client keeps its gate and its last experts -----------------

    def init_server(self, rng: torch.Generator) -> State:
        context, clients = self.first_context(rng), self.task.num_clients
        pool = torch.zeros(clients, *context.shape)
        return {"context": context, "pool": pool, "known": torch.zeros(clients, dtype=torch.bool)}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        experts = torch.zeros(self.experts, int(self.params.length), self.backbone.text.width)
        present = torch.zeros(self.experts, dtype=torch.bool)
        return {**attention_init("gate", self.gate_width, rng), "kept": experts, "kept.present": present}

    def rates(self) -> dict[str, float]:
        return {"context": self.params.lr, **dict.fromkeys(GATE, self.params.gate_lr)}

    # -- what travels --------------------------------------------------------------------------------------------------

    def download(self, server: State, clients: Sequence[int]) -> State:
        rows, known = list(clients), server["known"]
        shared = server["context"].expand(len(rows), -1, -1)
        own = torch.where(known[rows][:, None, None], server["pool"][rows], shared)
        others = torch.arange(len(known), device=known.device) != torch.tensor(rows, device=known.device)[:, None]
        experts, present = nearest(own, server["pool"], known & known[rows][:, None] & others, self.experts)
        return {"context": shared, "own": own, "experts": experts, "present": present}

    def sent_tensors(self, received: State, position: int) -> State:
        """A client has its own context already, and what only fills up a stack of experts is not sent."""
        experts, present = received["experts"][position], received["present"][position]
        sent = experts if present.is_meta else experts[present]
        return {"context": received["context"][position], "experts": sent}

    def upload(self, theta: State, received: State) -> State:  # noqa: ARG002
        return {"context": theta["context"]}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        rows = torch.tensor(clients, device=server["known"].device)
        pool = server["pool"].index_copy(0, rows, uploads["context"])
        known = server["known"].index_fill(0, rows, True)
        return {**super().aggregate(server, uploads, weights, clients), "pool": pool, "known": known}

    # -- the client ----------------------------------------------------------------------------------------------------

    def begin_visit(self, theta: State, round_: int) -> State:  # noqa: ARG002
        return {EXPERTS: self.expert_features(theta["experts"]), "gated": theta["present"].any(1)}

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        """With what the client trained last: its context, its gate and the experts of that visit."""
        return {CLASSES: self.encode(theta["own"]), EXPERTS: self.expert_features(theta["kept"])}

    @torch.no_grad()
    def expert_features(self, contexts: Tensor) -> Tensor:
        """(K, E, m, d_t) to (K, E, C, d)."""
        if not contexts.shape[1]:
            return contexts.new_empty(len(contexts), 0, self.task.num_classes, self.backbone.dim)
        return torch.unflatten(self.encode(contexts.flatten(0, 1)), 0, contexts.shape[:2])

    def loss(self, theta: State, batch: Batch) -> Tensor:
        local = self.encode(theta["context"])
        if batch.stage == "plain":
            return cross_entropy(self.cosine_logits(self.image_features(batch), local), batch)
        experts = theta[EXPERTS] if EXPERTS in theta else batch.start[EXPERTS]
        return cross_entropy(self.mixed_logits(theta, batch, local, experts, theta["present"]), batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return self.mixed_logits(theta, batch, batch.start[CLASSES], batch.start[EXPERTS], theta["kept.present"])

    def mixed_logits(self, theta: State, batch: Batch, local: Tensor, experts: Tensor, present: Tensor) -> Tensor:
        """Plain logits of a client without experts; else those of the mixture, plus lambda times the plain ones."""
        images = self.image_features(batch)
        plain = self.cosine_logits(images, local)
        query, features = self.reduce(images), self.reduce(torch.cat([local[:, None], experts], dim=1))
        mixture = mix(theta, query, features, F.pad(present, (1, 0), value=True), self.params.heads, self.params.kappa)
        if self.params.gate_norm == "cosine":
            query, mixture = F.normalize(query, dim=-1), F.normalize(mixture, dim=-1)
        gated = self.backbone.logit_scale * torch.einsum("kbd,kbcd->kbc", query, mixture)
        return torch.where(present.any(1)[:, None, None], gated + self.params.local_weight * plain, plain)

    def reduce(self, features: Tensor) -> Tensor:
        """The coordinates that the gate sees: every R-th, or means of R neighbours."""
        groups = torch.unflatten(features, -1, (self.gate_width, -1))
        return groups.mean(-1) if self.params.pool == "mean" else groups[..., 0]

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:
        """The gate of a client without experts stays as it is: weight decay may not move it either."""
        return step * start["gated"].view(-1, *[1] * (step.dim() - 1)) if name in GATE else step

    def end_stage(self, stage: Stage, theta: State) -> State:
        if stage.name == "plain":  # the server answers an unseen client with what is nearest to its context now
            experts, present = nearest(theta["context"], theta["pool"][0], theta["known"], self.experts)
            return {"experts": experts, "present": present, EXPERTS: self.expert_features(experts)}
        remembered = {"own": theta["context"], "kept": theta["experts"], "kept.present": theta["present"]}
        return remembered if stage.epochs else {}

    def adaptation(self, epochs: int) -> Stage:
        """A client without experts has no use for a gate."""
        return Stage("adapt", {"context": self.params.lr}, epochs)

    # -- a client kept out of all rounds -------------------------------------------------------------------------------

    def unseen_download(self, server: State, clients: Sequence[int]) -> State:
        """The mean, and the pool that stands for the server's answer after the unseen client's first half."""
        sent = super().download({name: server[name] for name in ("context", "pool", "known")}, clients)
        experts, present = nearest(sent["context"], server["pool"], sent["known"], self.experts)
        return {**sent, "own": sent["context"], "experts": experts, "present": present}

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        return [Stage("plain", {"context": self.params.lr}, epochs), Stage("gated", self.rates(), epochs)]
