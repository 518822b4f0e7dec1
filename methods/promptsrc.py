"""PromptSRC, federated: deep prompts in both towers that stay near the frozen features and predictions.

Predictions are made with an average of the server's prompts over the rounds, in which late rounds weigh most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._deep_prompts import DeepPromptMethod, blocks_option
from fedprompt.methods._headed import cross_entropy, revised
from fedprompt.methods._mixins import Downloads
from fedprompt.methods._text import TextParams

PROMPTS = ("text", "visual")


@dataclass(frozen=True)
class PromptSRCParams(TextParams):
    lr: float = revised(TextParams, "lr", default=0.0025, paper="0.0025", grid=(0.0025, 0.01, 0.05))
    length: int = revised(TextParams, "length", default=4, paper="4")
    visual_length: int = option(4, "rows of each prompted block of the image tower", low=1, paper="4")
    blocks: int = blocks_option()
    text_pull: float = option(25.0, "weight of the distance to the frozen texts", low=0, paper="25")
    image_pull: float = option(10.0, "weight of the distance to the frozen image features", low=0, paper="10")
    logit_pull: float = option(1.0, "weight of the divergence from zero-shot predictions", low=0, paper="1")
    peak: float = option(0.75, "where in the run rounds weigh most in the average, 0 to 1", low=0, high=1, paper="0.75")
    spread: float = option(
        0.05, "width of that average, as a share of all rounds; 0 means the last round alone", low=0, paper="0.05"
    )
    template: str = option("", "text with {} for the class name; empty means the templates of the weights")


class PromptSRC(DeepPromptMethod, Downloads):
    """Shared: prompts of both towers, and on the server their average over the rounds. Private: nothing."""

    name = "promptsrc"
    title = "PromptSRC, averaged"
    order = 218
    paper = "Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting (ICCV 2023)"
    payload_formula = "2*J*(m*d_t + m_v*d_v) down, J*(m*d_t + m_v*d_v) up"
    needs = frozenset({"text", "images", "features", "prompts"})
    Params = PromptSRCParams

    def __init__(self, params: PromptSRCParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.reference = self.template_texts()  # (C, d), a constant

    # -- the server: the ordinary average, which clients train on, and its mean over the rounds, which predicts -----

    def init_server(self, rng: torch.Generator) -> State:
        visual = self.first_rows(self.backbone.width, int(self.params.visual_length), rng)
        prompts = {"text": self.first_texts(rng), "visual": visual}
        if not self.params.spread:
            return prompts
        return {**prompts, **{f"mean.{name}": prompts[name].clone() for name in PROMPTS}, "round": torch.zeros(1)}

    def rates(self) -> dict[str, float]:
        return dict.fromkeys(PROMPTS, self.params.lr)

    def download(self, server: State, clients: Sequence[int]) -> State:
        prompts = {name: server[name] for name in PROMPTS}
        if self.params.spread:
            prompts |= {f"shift.{name}": server[f"mean.{name}"] - server[name] for name in PROMPTS}
        return super().download(prompts, clients)

    def upload(self, theta: State, received: State) -> State:  # noqa: ARG002
        return {name: theta[name] for name in PROMPTS}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        state = super().aggregate(server, uploads, weights, clients)
        if self.params.spread:
            state["round"] = server["round"] + 1
            share = self.share(state["round"])
            state |= {f"mean.{name}": torch.lerp(server[f"mean.{name}"], state[name], share) for name in PROMPTS}
        return state

    def share(self, round_: Tensor) -> Tensor:
        """The weight of a round, (1,) from 1, in the average of all until then: by a Gaussian over the rounds."""
        rounds = torch.arange(1, self.task.rounds + 1, device=round_.device)
        scores: Tensor = -((rounds / self.task.rounds - self.params.peak) ** 2) / (2 * self.params.spread**2)
        weights = scores.masked_fill(rounds > round_, -torch.inf).softmax(0)
        return (weights * (rounds == round_)).sum(0, keepdim=True)

    # -- the client -----

    def context(self, theta: State) -> Tensor:
        return shifted(theta, "text")

    def visual(self, theta: State) -> Tensor:
        return shifted(theta, "visual")

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if batch.stage == "train":  # the mean over rounds is for predictions, and for copies tuned before them
            theta = {name: theta[name] for name in PROMPTS}
        texts, images = self.class_features(theta), self.prompted_images(theta, batch)
        frozen = self.image_features(batch)
        logits = self.cosine_logits(images, texts)
        zero_shot = self.cosine_logits(frozen, self.reference.expand_as(texts)).log_softmax(-1)
        text_distance = (texts - self.reference).abs().mean((1, 2))
        image_distance = batch.mean((images - frozen).abs().mean(-1))
        divergence = batch.mean((zero_shot.exp() * (zero_shot - logits.log_softmax(-1))).mean(-1))
        pulls: Tensor = self.params.text_pull * text_distance + self.params.image_pull * image_distance
        pulls = pulls + self.params.logit_pull * divergence
        return cross_entropy(logits, batch) + pulls


def shifted(theta: State, name: str) -> Tensor:
    """A prompt as it predicts, where theta knows how far the mean over the rounds is from what it trains."""
    shift = theta.get(f"shift.{name}")
    return theta[name] if shift is None else theta[name] + shift
