"""SGPT: shared prompts for what clients have in common, group prompts chosen image by image for what they do not.

A visit is block coordinate descent. Stage "shared" trains the shared prompts with the groups switched off; stage
"group" trains group prompts and keys with the shared prompts fixed. The head trains in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import Edit, FrozenViT, insert
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.core.rng import torch_rng
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._headed import HeadedMethod, PromptParams

FEW = 50  # a key chosen at most this often in a round is averaged with equal weights
FLOOR = 5e-4  # keeps a group that was never chosen from costing nothing, however far its key


@dataclass(frozen=True)
class SGPTParams(PromptParams):
    length: int = option(1, "shared tokens before the first shared block; each other one gets one", low=1, paper="1")
    groups: int = option(6, "groups G", low=1, paper="20 (CIFAR), 4 (Office)", grid=(6, 20))
    shared_blocks: str = option("auto", "blocks (from 0) with shared tokens, as 0-4 or 0,2,3", paper="0-3 or 0-4")
    group_blocks: str = option("auto", "later blocks with a token of the chosen group", paper="4-6 or 5-6")
    query_blocks: int = option(0, "blocks of the query pass; 0 means all", low=0, paper="6 for domains, else all")
    batch_vote: bool = option(
        False, "in training a batch takes its most frequent choice", paper="true for domains, else false"
    )
    live_counts: bool = option(False, "popularity includes the choices of the visit so far", paper="false")
    key_weight: float = option(1.0, "weight of the pull of keys towards their queries", low=0, paper="1")
    key_epochs: int = option(
        6,
        "passes over the images in which keys are pulled; 0 means all of the visit",
        low=0,
        paper="6 (keyepoch = 5, counted from 0)",
    )
    unit_keys: bool = option(
        False, "the first key, too, begins with length 1; the public code leaves it as drawn", paper="false"
    )
    moment_p: float = option(0.5, "share of the old group prompts the server keeps", low=0, high=1, paper="0.5")
    moment_k: float = option(0.0, "the same for keys", low=0, high=1, paper="0.5 (CIFAR), 0 (Office)", grid=(0.0, 0.5))
    bcd_epochs: str = option("E+E", "epochs of the two stages", choices=("E+E", "E/2+E/2"), paper="E+E")


class SGPT(HeadedMethod):
    name = "sgpt"
    title = "SGPT"
    order = 50
    paper = (
        "Deng et al., Unlocking the Potential of Prompt-Tuning in Bridging Generalized and Personalized ... (CVPR 2024)"
    )
    payload_formula = "(T + |A| - 1 + |B|*G + G)*d + G each way (+ C*d + C with a global head)"
    needs = frozenset({"images", "features", "prompts"})
    Params = SGPTParams
    fixed_inputs = True

    def __init__(self, params: SGPTParams, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        depth = backbone.depth
        shared = max(1, round(depth * 5 / 12))  # the published places at depth 12, in proportion elsewhere
        grouped = max(1, round(depth * 2 / 12))
        self.shared_blocks = blocks(params.shared_blocks, range(shared), depth, "shared_blocks")
        self.group_blocks = blocks(params.group_blocks, range(shared, shared + grouped), depth, "group_blocks")
        if self.shared_blocks[-1] >= self.group_blocks[0]:
            raise UserError(
                f"sgpt: group_blocks begin at {self.group_blocks[0]}, but shared_blocks end at "
                f"{self.shared_blocks[-1]}; group tokens are pooled with CLS and must be inserted last."
            )
        if params.groups > backbone.width:
            raise UserError(
                f"sgpt: groups = {params.groups}, but only {backbone.width} keys can be orthogonal; use fewer."
            )

    @classmethod
    def feature_depth(cls, params: SGPTParams) -> int | None:
        return params.query_blocks or None

    # -- state: shared (T+|A|-1, d), groups (|B|, G, d), keys (G, d), counts (G) -----------------------------------

    def init_prompts(self, rng: torch.Generator) -> State:
        width, groups = self.backbone.width, self.params.groups
        return {
            "shared": self.first_shared(),
            "groups": self.draw_prompts((len(self.group_blocks), groups, width), rng, self.group_blocks),
            "keys": self.first_keys((2 * torch.rand(groups, width, generator=rng) - 1) * (6 / (groups + width)) ** 0.5),
            "counts": torch.zeros(groups, dtype=torch.int64),  # choices of all rounds so far, as the server knows them
        }

    def first_keys(self, draw: Tensor) -> Tensor:
        """Orthogonal rows of length 1; as in the public code, the first one keeps the length that it was drawn with."""
        keys = orthogonal(draw)
        return keys if self.params.unit_keys else torch.cat([draw[:1], keys[1:]])

    def first_shared(self) -> Tensor:
        """Zeros, or with `tokens` the means of the tokens they stand beside; the draw is then one of its own."""
        shape = (self.shared_tokens, self.backbone.width)
        if self.params.init != "tokens":
            return torch.zeros(shape)
        first = self.shared_blocks[0]
        blocks = [first] * int(self.params.length) + list(self.shared_blocks[1:])
        return self.draw_prompts(shape, torch_rng(0, "init", "sgpt"), blocks)

    @property
    def shared_tokens(self) -> int:
        return int(self.params.length) + len(self.shared_blocks) - 1

    def prompt_floats(self) -> int:
        groups = int(self.params.groups)
        return (self.shared_tokens + (len(self.group_blocks) + 1) * groups) * self.backbone.width + groups

    def rates(self) -> dict[str, float]:
        return self.rates_of("shared", "groups", "keys")

    # -- the client ------------------------------------------------------------------------------------------------

    def stages(self, epochs: int) -> Sequence[Stage]:
        first, second = (epochs, epochs) if self.params.bcd_epochs == "E+E" else (epochs // 2, epochs - epochs // 2)
        rates = self.rates()
        shared = {name: rates[name] for name in ("shared", "head.weight", "head.bias")}
        group = {name: rates[name] for name in ("groups", "keys", "head.weight", "head.bias")}
        return [Stage("shared", shared, first), Stage("group", group, second)]

    def loss(self, theta: State, batch: Batch) -> Tensor:
        loss = super().loss(theta, batch)
        if batch.stage != "group":
            return loss
        similar = similarity(batch.features, theta["keys"])
        pull = batch.mean((similar * self.choice(theta, batch)).sum(-1))
        key_weight: float = self.params.key_weight
        return loss - key_weight * self.pulls_keys(theta, batch) * pull

    def pulls_keys(self, theta: State, batch: Batch) -> Tensor:
        """Whether each client is still in one of the passes that pull keys, (K,): every image is counted in each."""
        seen = (theta["counts"] - batch.start["counts"]).sum(-1)
        images = self.task.train_counts[list(batch.clients)].sum(1).to(seen.device)
        passes = self.params.key_epochs
        return seen < passes * images if passes else torch.ones_like(seen, dtype=torch.bool)

    def features(self, theta: State, batch: Batch) -> Tensor:
        """CLS in stage "shared", later the mean of CLS and the tokens of the chosen group."""
        shared = batch.rows(theta["shared"])
        if batch.stage == "shared":
            return batch.pad(self.backbone.cls(batch.images, self.edit(shared)))
        group = torch.einsum("kbg,klgd->kbld", self.choice(theta, batch), theta["groups"])
        rows = 1 + len(self.group_blocks)
        return batch.pad(self.backbone(batch.images, self.edit(shared, batch.pack(group)), rows=rows).mean(1))

    def edit(self, shared: Tensor, group: Tensor | None = None) -> Edit:
        """Insert, and never remove, (n, T+|A|-1, d) before the shared and (n, |B|, d) before the group blocks."""
        sizes = [self.params.length] + [1] * (len(self.shared_blocks) - 1)
        prompts = dict(zip(self.shared_blocks, torch.split(shared, sizes, dim=1), strict=True))
        if group is not None:
            prompts |= zip(self.group_blocks, torch.split(group, 1, dim=1), strict=True)
        return lambda block, tokens: insert(tokens, prompts[block]) if block in prompts else tokens

    def choice(self, theta: State, batch: Batch) -> Tensor:
        """The group of each image, one-hot, (K, B, G): the nearest key, in training the nearest unpopular one."""
        distance = 1 - similarity(batch.features, theta["keys"].detach())
        if batch.stage != "group":
            return one_hot(distance.argmin(-1), distance)
        counts = theta["counts"] if self.params.live_counts else batch.start["counts"]
        nearest = one_hot((distance * popularity(counts, distance)[:, None]).argmin(-1), distance)
        if not self.params.batch_vote:
            return nearest
        votes = (nearest * batch.mask[..., None]).sum(1, keepdim=True)
        return one_hot(votes.argmax(-1), distance).expand_as(nearest)

    def observe(self, theta: State, batch: Batch) -> State:
        if batch.stage != "group":
            return {}
        choices = self.choice(theta, batch) * batch.mask[..., None]
        return {"counts": theta["counts"] + choices.sum(1).to(torch.int64)}

    # -- the server ------------------------------------------------------------------------------------------------

    def upload(self, theta: State, received: State) -> State:
        """The counts of this visit only: the server knows the older ones."""
        return {**super().upload(theta, received), "counts": theta["counts"] - received["counts"]}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        new = super().aggregate(server, uploads, weights, clients)
        keys = torch.einsum("kg,kgd->gd", key_weights(uploads["counts"]), uploads["keys"].double())
        return {
            **new,
            "groups": torch.lerp(new["groups"], server["groups"], self.params.moment_p),
            "keys": torch.lerp(keys.to(server["keys"].dtype), server["keys"], self.params.moment_k),
            "counts": server["counts"] + uploads["counts"].sum(0),
        }


def similarity(features: Tensor, keys: Tensor) -> Tensor:
    """Cosine of each image's query, the rectified frozen feature, with its client's keys, (K, B, G)."""
    return torch.einsum("kbd,kgd->kbg", F.normalize(F.relu(features), dim=-1), F.normalize(keys, dim=-1))


def popularity(counts: Tensor, like: Tensor) -> Tensor:
    """What a distance is multiplied by in training, (K, G): a group's share of all choices; 1 before the first."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1) + FLOOR, 1.0).to(like.dtype)


def key_weights(counts: Tensor) -> Tensor:
    """Weights of the cohort's keys, (K, G): by how often each client chose the group, equal if hardly anyone did."""
    total = counts.sum(0)
    return torch.where(total > FEW, counts.double() / total.clamp(min=1), 1 / len(counts))


def orthogonal(keys: Tensor) -> Tensor:
    """Rows made orthonormal in order, as by Gram and Schmidt."""
    basis: Tensor
    triangle: Tensor
    basis, triangle = torch.linalg.qr(keys.T)
    return (basis * triangle.diagonal().sign()).T.contiguous()


def one_hot(index: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(index, like.shape[-1]).to(like.dtype)


def blocks(text: str, auto: range, depth: int, where: str) -> tuple[int, ...]:
    """``0-2,5`` is (0, 1, 2, 5); ``auto`` takes what is given."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")] if text != "auto" else [auto]
        named = sorted({block for end in ends for block in range(end[0], end[-1] + 1)})
    except ValueError:
        named = []
    if not named or named[-1] >= depth:
        raise UserError(f"sgpt: {where} = {text!r} does not name blocks 0 to {depth - 1}; write 0-2, 0,2 or auto.")
    return tuple(named)
