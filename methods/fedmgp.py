"""FedMGP: several short pairs of text and visual prompts per client, kept apart by a loss; a few of them are exchanged.

After a visit, a client draws which groups to send; those closer to what the server sent last are more likely.
What comes back takes their places; the other groups stay its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedprompt.backbones.backbone import shallow
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import PLACEHOLDER, Prompts, spoken_name
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._headed import cross_entropy, revised
from fedprompt.methods._mixins import Downloads, Stages, Steps
from fedprompt.methods._prompt_groups import group_distance, slot_likeness
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams

KINDS = ("text", "visual")


@dataclass(frozen=True)
class FedMGPParams(TextParams):
    length: int = revised(TextParams, "length", default=2, help="learned text tokens of a group", paper="2")
    ctx_init: str = revised(
        TextParams,
        "ctx_init",
        help="words before the class name, of which the first are learned; empty means the template of the weights",
    )
    visual_length: int = option(2, "visual tokens of a group", low=1, paper="2")
    groups: int = option(5, "groups of a client", low=1, paper="5")
    exchanged: int = option(2, "groups that are sent and come back", low=1, paper="2")
    diversity: float = option(1.0, "weight of the distance between groups", low=0, paper="1")
    slot_weights: str = option(
        "uniform", "weights of the cohort in the slots", choices=("uniform", "protocol"), paper="uniform"
    )
    tau: float = option(1.0, "temperature of the draw; small means the nearest groups", low=1e-6, paper="1")


class FedMGP(TextMethod, Downloads, Stages, Steps):
    """Shared: a few slots of text and visual prompts. Private: all groups, and which of them the slots replace."""

    name = "fedmgp"
    title = "FedMGP"
    order = 295
    paper = "Bo et al., FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts (2025)"
    payload_formula = "k*(m*d_t + m_v*d_v) each way"
    needs = frozenset({"text", "images", "prompts"})
    Params = FedMGPParams

    def __init__(self, params: FedMGPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        if params.exchanged > params.groups:
            raise UserError(f"fedmgp: exchanged = {params.exchanged} of groups = {params.groups}; exchange fewer.")

    # -- texts: learned tokens in place of a template's first words --------------------------------------------------

    @cached_property
    def words(self) -> list[str]:
        words = str(self.params.ctx_init or self.backbone.templates[0].split("{}")[0]).split()
        if len(words) < self.params.length:
            raise UserError(f"fedmgp: length = {self.params.length}, but {' '.join(words)!r} has fewer words.")
        return words

    @cached_property
    def prompts(self) -> Prompts:
        learned = int(self.params.length)
        start = " ".join([PLACEHOLDER] * learned + self.words[learned:])
        return self.backbone.text.tokenise([f"{start} {spoken_name(name)}." for name in self.task.class_names], learned)

    # -- state: groups of a client, slots of the server, which positions the slots take ------------------------------

    def draw(self, count: int, rng: torch.Generator) -> State:
        params, clip = self.params, self.backbone
        words = clip.text.context_of(" ".join(self.words[: params.length]))
        if len(words) != params.length:
            raise UserError(
                f"fedmgp: the first {params.length} of {self.words} are {len(words)} tokens; choose others."
            )
        text = words + CONTEXT_STD / 2 * torch.randn(count, *words.shape, generator=rng).to(words.device)
        visual = CONTEXT_STD * torch.randn(count, int(params.visual_length), clip.width, generator=rng)
        return {"text": text, "visual": visual}

    def init_server(self, rng: torch.Generator) -> State:
        return {f"slots.{kind}": slots for kind, slots in self.draw(int(self.params.exchanged), rng).items()}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        groups, exchanged = int(self.params.groups), int(self.params.exchanged)
        positions = {"drawn": torch.arange(exchanged), "noise": torch.zeros(groups), "fresh": torch.ones(1)}
        return {**self.draw(groups, rng), **positions}

    def rates(self) -> dict[str, float]:
        return dict.fromkeys((*KINDS, *(f"slots.{kind}" for kind in KINDS)), self.params.lr)

    def download(self, server: State, clients: Sequence[int]) -> State:
        """Slots that train, and the same as they were sent: groups are drawn by their likeness to these."""
        slots = super().download(server, clients)
        return {**slots, **{f"sent.{kind}": slots[f"slots.{kind}"] for kind in KINDS}}

    def sent_tensors(self, received: State, position: int) -> State:
        return {f"slots.{kind}": received[f"slots.{kind}"][position] for kind in KINDS}

    def upload(self, theta: State, received: State) -> State:  # noqa: ARG002
        return {f"slots.{kind}": theta[f"slots.{kind}"] for kind in KINDS}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        if self.params.slot_weights == "uniform":
            weights = torch.full_like(weights, 1 / len(clients))
        return super().aggregate(server, uploads, weights, clients)

    def held(self, theta: State, kind: str) -> Tensor:
        """All groups of each client, the server's slots in the positions that were drawn last, (K, groups, ...)."""
        slots = theta[f"slots.{kind}"]
        return theta[kind].scatter(1, theta["drawn"][..., None, None].expand_as(slots), slots)

    # -- the client --------------------------------------------------------------------------------------------------

    def class_features(self, theta: State) -> Tensor:
        """(K, groups, C, d)."""
        contexts = self.held(theta, "text")
        return torch.unflatten(self.encode(contexts.flatten(0, 1)), 0, contexts.shape[:2])

    def group_images(self, theta: State, batch: Batch) -> Tensor:
        """Image features under each visual prompt, (K, groups, B, d)."""
        prompts = self.backbone.vit.norm_pre(self.held(theta, "visual"))
        passes = (
            self.backbone.image_features(batch.images, shallow(batch.rows(prompts[:, group])))
            for group in range(prompts.shape[1])
        )
        return torch.stack([batch.pad(features) for features in passes], dim=1)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        images, classes = self.group_images(theta, batch), self.class_features(theta)
        pairs = zip(images.unbind(1), classes.unbind(1), strict=True)
        fits = [cross_entropy(self.cosine_logits(image, names), batch) for image, names in pairs]
        distance = batch.mean(group_distance(images)) + group_distance(classes).mean(1)
        diversity: float = self.params.diversity
        return torch.stack(fits).mean(0) - diversity / 2 * distance

    def predict(self, theta: State, batch: Batch) -> Tensor:
        images, classes = self.group_images(theta, batch), self.current_classes(theta, batch)
        return self.backbone.logit_scale * (images @ classes.mT).mean(1)

    # -- which groups are sent ---------------------------------------------------------------------------------------

    def observe(self, theta: State, batch: Batch) -> State:
        """Noise for the draw at the end of the visit, from the client's own stream."""
        if batch.stage != "train":
            return {}
        uniform = batch.uniform(int(self.params.groups))[:, 0].clamp(1e-6, 1 - 1e-6)
        return {"noise": torch.where(batch.mask.any(1, keepdim=True), -(-uniform.log()).log(), theta["noise"])}

    def end_stage(self, stage: Stage, theta: State) -> State:
        if stage.name != "train" or not stage.epochs:
            return {}
        groups_by_kind = {kind: self.held(theta, kind) for kind in KINDS}
        near = torch.stack([slot_likeness(groups_by_kind[kind], theta[f"sent.{kind}"]) for kind in KINDS]).mean(0)
        # The largest scores are a draw without replacement.
        scores = near / self.params.tau * (1 - theta["fresh"]) + theta["noise"]
        drawn = scores.argsort(dim=1, descending=True, stable=True)[:, : int(self.params.exchanged)]
        rows = torch.arange(len(drawn), device=drawn.device)[:, None]
        slots = {f"slots.{kind}": groups[rows, drawn] for kind, groups in groups_by_kind.items()}
        return {**groups_by_kind, **slots, "drawn": drawn, "fresh": torch.zeros_like(theta["fresh"])}
