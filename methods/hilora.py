"""HiLoRA: three low-rank updates on top of each other, trained one after another: of all, of a group, of one client.

    W x  becomes  W x + (alpha / r) (B_root A_root + B_cluster A_cluster + B_leaf A_leaf) x

No code of the authors is public, and several constants were not available to us; they are parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State
from fedprompt.methods._low_rank import LowRank, LowRankParams
from fedprompt.methods._mixins import Downloads, Stages, UnseenClients, stacked
from fedprompt.methods._subspaces import spectral_groups, subspace_distances
from fedprompt.methods.fed_lora import best_rank

ROOT, CLUSTER, LEAF = range(3)


@dataclass(frozen=True)
class HierarchyParams(LowRankParams):
    root_rounds: int = option(15, "rounds of the root", low=1)
    cluster_rounds: int = option(20, "rounds of the clusters; all later ones are the leaves'", low=0)
    smoothing: float = option(0.9, "lambda: weight of the past in a client's smoothed B", low=0, high=1)
    least_groups: int = option(2, "fewest groups", low=1)
    most_groups: int = option(10, "most groups", low=1)
    cluster_penalty: float = option(
        0.1, "weight of |B_root^T B|^2, which keeps later tiers off the root's columns", low=0
    )
    leaf_penalty: float = option(0.1, "weight of |B_cluster^T B_leaf|^2", low=0)


class HiLora(LowRank, Downloads, Stages, UnseenClients):
    """Shared: the tier that trains, ``down`` and ``up`` of theta. Private: the leaf.

    In the leaves' rounds ``down`` and ``up`` are what a visit adds to the leaf, and go back to zero before the upload.
    """

    name = "hilora"
    title = "HiLoRA"
    order = 91
    paper = "HiLoRA: Hierarchical Low-Rank Adaptation for Personalized Federated Learning (CVPR 2026)"
    payload_formula = "4*L*r*d each way"
    Params: ClassVar[type] = HierarchyParams

    def init_server(self, rng: torch.Generator) -> State:
        state = super().init_server(rng)
        root = {name: state.pop(name) for name in ("down", "up")}
        groups = min(self.params.most_groups, self.task.num_clients)
        first = [self.factors(rng) for _ in range(groups)]
        cluster = {name: torch.stack([draw[name] for draw in first]) for name in root}
        return {
            **state,
            **{f"root.{name}": tensor for name, tensor in root.items()},
            **{f"cluster.{name}": tensor for name, tensor in cluster.items()},
            "smoothed": torch.zeros(self.task.num_clients, *root["up"].shape),  # 0 where nobody has been
            "groups": torch.zeros(self.task.num_clients, dtype=torch.int64),
            "round": torch.zeros((), dtype=torch.int64),
        }

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        leaf = {f"leaf.{name}": tensor for name, tensor in self.factors(rng).items()}
        return {**super().init_personal(rng, client), **leaf}

    def rates(self) -> dict[str, float]:
        return self.rates_of("down", "up")

    # -- what the server sends ----------------------------------------------------------------------------------------

    def stage_of(self, server: State) -> Tensor:
        """The stage of the next round."""
        ends = (self.params.root_rounds, self.params.root_rounds + self.params.cluster_rounds)
        stage: Tensor = (server["round"] >= ends[0]).long() + (server["round"] >= ends[1]).long()
        return stage

    def download(self, server: State, clients: Sequence[int]) -> State:
        return self._sent(server, clients, self.stage_of(server))

    def unseen_download(self, server: State, clients: Sequence[int]) -> State:
        return self._sent(server, clients, torch.full_like(server["round"], LEAF))

    def _sent(self, server: State, clients: Sequence[int], stage: Tensor) -> State:
        head = {name: tensor for name, tensor in server.items() if name.startswith("head.")}
        sent = stacked({**head, "stage": stage}, clients)
        for name in ("down", "up"):
            root = server[f"root.{name}"].expand(len(clients), *server[f"root.{name}"].shape)
            cluster = server[f"cluster.{name}"][server["groups"][list(clients)]]
            sent[name] = (stage == ROOT) * root + (stage == CLUSTER) * cluster
            sent[f"frozen.{name}"] = torch.stack([(stage > ROOT) * root, (stage > CLUSTER) * cluster], dim=1)
        return sent

    def sent_tensors(self, received: State, position: int) -> State:
        """Frozen tiers change twice in a run; clients keep them."""
        kept = ("stage", "frozen.down", "frozen.up")
        return {name: tensor[position] for name, tensor in received.items() if name not in kept}

    # -- the client ---------------------------------------------------------------------------------------------------

    def tier(self, theta: State, name: str) -> Tensor:
        """The factor that trains, (K, L, 2, ...)."""
        leaf = (theta["stage"] == LEAF).view(-1, 1, 1, 1, 1)
        factor: Tensor = theta[name] + leaf * theta[f"leaf.{name}"]
        return factor

    def features(self, theta: State, batch: Batch) -> Tensor:
        down = torch.cat([*theta["frozen.down"].unbind(1), self.tier(theta, "down")], dim=-2)
        up = torch.cat([*theta["frozen.up"].unbind(1), self.tier(theta, "up")], dim=-1)
        return super().features({**theta, "down": down, "up": up}, batch)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        overlaps: Tensor = theta["frozen.up"].mT @ self.tier(theta, "up")[:, None]  # (K, 2, L, 2, r, r)
        root, cluster = overlaps.square().flatten(2).sum(2).unbind(1)
        penalty = self.params.cluster_penalty * root + self.params.leaf_penalty * cluster
        loss: Tensor = super().loss(theta, batch) + penalty
        return loss

    def end_stage(self, stage: Stage, theta: State) -> State:
        """In the leaves' rounds, what was added joins the leaf, so that nothing of it is uploaded."""
        if stage.name != "train":
            return {}
        leaf = (theta["stage"] == LEAF).view(-1, 1, 1, 1, 1)
        added = {name: theta[name] * ~leaf for name in ("down", "up")}
        kept = {f"leaf.{name}": theta[f"leaf.{name}"] + leaf * theta[name] for name in ("down", "up")}
        return {**added, **kept}

    def upload(self, theta: State, received: State) -> State:
        return {name: theta[name] for name in received if name.startswith("head.") or name in ("down", "up")}

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        """An unseen client trains the second factor of a leaf on the root and the largest cluster, and its own head."""
        head = [name for name in ("head.weight", "head.bias") if self.local_head]
        return [Stage("leaf", {name: self.rates()[name] for name in ("up", *head)}, epochs)]

    # -- the server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        heads = {name: stack for name, stack in uploads.items() if name.startswith("head.")}
        state = {**super().aggregate(server, heads, weights, clients), "round": server["round"] + 1}
        stage, rows = int(self.stage_of(server)), list(clients)
        if stage == ROOT:
            state["root.down"], state["root.up"] = self.merged(uploads, weights, slice(None))
            state["smoothed"] = self.smoothed(server["smoothed"], uploads["up"], rows)
            if int(self.stage_of(state)) != ROOT:
                state["groups"] = self.clustered(state["smoothed"])
        elif stage == CLUSTER:
            present = server["groups"][rows]
            state |= {name: server[name].clone() for name in ("cluster.down", "cluster.up")}
            for group in sorted(set(present.tolist())):
                merged = self.merged(uploads, weights, present == group)
                state["cluster.down"][group], state["cluster.up"][group] = merged
        return state

    def merged(self, uploads: State, weights: Tensor, who: slice | Tensor) -> tuple[Tensor, Tensor]:
        """A and B of the best approximation of the mean update of some clients, with B's columns orthonormal."""
        down, up, share = uploads["down"][who].double(), uploads["up"][who].double(), weights[who]
        columns, rows = best_rank(up.mT, down.mT, share / share.sum())
        return rows.mT.to(uploads["down"]), columns.mT.to(uploads["up"])

    def smoothed(self, past: Tensor, ups: Tensor, rows: list[int]) -> Tensor:
        """lambda of the past and 1 - lambda of B / |B|, for the participants."""
        length = ups.flatten(3).norm(dim=3).clamp(min=1e-12)[..., None, None]
        kept = self.params.smoothing
        return past.index_put((torch.tensor(rows, device=past.device),), kept * past[rows] + (1 - kept) * ups / length)

    def clustered(self, smoothed: Tensor) -> Tensor:
        """The group of every client; those that never took part join the largest one."""
        known = smoothed.flatten(1).any(1)
        found = spectral_groups(
            subspace_distances(smoothed[known]), self.params.least_groups, self.params.most_groups
        ).to(smoothed.device)
        groups = torch.full_like(known, int(found.mode().values), dtype=torch.int64)
        groups[known] = found
        return groups
