"""SGPT: shared prompts for what clients have in common, group prompts chosen image by image for what they do not.

A visit is block coordinate descent. Stage "shared" trains the shared prompts with the groups switched off; stage
"group" trains group prompts and keys with the shared prompts fixed. The head trains in both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedprompt.backbones.backbone import Edit, FrozenViT, insert
from fedprompt.core.errors import UserError
from fedprompt.core.rng import torch_rng
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._group_keys import key_weights, one_hot, orthogonal, popularity, similarity
from fedprompt.methods._headed import HeadedMethod
from fedprompt.methods._mixins import FrozenDepth, OneByOne, Stages, Steps
from fedprompt.methods._sgpt_params import SGPTParams


class SGPT(HeadedMethod, Stages, Steps, OneByOne, FrozenDepth):
    """Shared: shared prompts, group prompts, the groups' keys, and how often each was chosen. Private: nothing."""

    name = "sgpt"
    title = "SGPT"
    order = 50
    paper = (
        "Deng et al., Unlocking the Potential of Prompt-Tuning in Bridging Generalized and Personalized ... (CVPR 2024)"
    )
    payload_formula = "(T + A - 1 + B*G + G)*d + G each way"
    needs = frozenset({"images", "features", "prompts"})
    Params = SGPTParams
    fixed_inputs = True

    def __init__(self, params: SGPTParams, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.shared_blocks, self.group_blocks = params.prompted_blocks(backbone.depth)
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
        """Zeros, or with `tokens` the means of the tokens next to which they stand; these have their own draw."""
        shape = (self.shared_tokens, self.backbone.width)
        if self.params.init != "tokens":
            return torch.zeros(shape)
        first = self.shared_blocks[0]
        blocks = [first] * int(self.params.length) + list(self.shared_blocks[1:])
        return self.draw_prompts(shape, torch_rng(0, "init", "sgpt"), blocks)

    @property
    def shared_tokens(self) -> int:
        return int(self.params.length) + len(self.shared_blocks) - 1

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

    def is_one_by_one(self) -> bool:
        return bool(self.params.counts == "sequential")

    def hand_on(self, sent: State, upload: State) -> State:
        """The one counter of the public code, which clients of a round update in turn."""
        return {"counts": sent["counts"] + upload["counts"]}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        new = super().aggregate(server, uploads, weights, clients)
        keys = torch.einsum("kg,kgd->gd", key_weights(uploads["counts"]), uploads["keys"].double())
        return {
            **new,
            "groups": torch.lerp(new["groups"], server["groups"], self.params.moment_p),
            "keys": torch.lerp(keys.to(server["keys"].dtype), server["keys"], self.params.moment_k),
            "counts": server["counts"] + uploads["counts"].sum(0),
        }
