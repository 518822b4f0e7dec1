"""The frozen CLIP: an image tower that is a `FrozenViT` in every respect, a text tower, and the space they share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import Edit, FrozenViT
from fedprompt.backbones.text import Prompts, TextTower, spoken_name
from fedprompt.core.errors import UserError

if TYPE_CHECKING:  # importing timm takes seconds, and `methods` needs none
    from timm.models.vision_transformer import VisionTransformer

TEMPLATE = "a photo of a {}."


def fill_template(template: str, class_names: Sequence[str]) -> list[str]:
    """One sentence per class: `a photo of a {}.` with each name, as it is spoken, in place of the braces."""
    if template.count("{}") != 1:
        places = template.count("{}") or "no"
        raise UserError(
            f"template {template!r} has {places} place{'s' * (places != 1)} for the class name; "
            f"write {{}} once, as in {TEMPLATE!r}."
        )
    return [template.replace("{}", spoken_name(name)) for name in class_names]


class FrozenCLIP(FrozenViT):
    """Image and text towers that never train. To a ViT method it is the image tower.

    ``logit_scale`` is what cosines are multiplied with, ``dim`` the width of the shared space, ``templates`` the
    zero-shot sentences that go with these weights.
    """

    offers = FrozenViT.offers | {"text", "spatial tokens"}
    projection: nn.Module

    def __init__(
        self,
        vit: "VisionTransformer",
        projection: nn.Linear,
        text: TextTower,
        logit_scale: float,
        name: str,
        weights: str,
        mean: Sequence[float],
        std: Sequence[float],
        templates: Sequence[str] = (TEMPLATE,),
    ) -> None:
        super().__init__(vit, name, weights, mean, std)
        self.projection, self.text = projection.requires_grad_(False), text.requires_grad_(False)
        self.logit_scale = logit_scale  # multiplies cosines: exp of the trained parameter
        self.templates = tuple(templates)  # the zero-shot prompts that go with these weights
        self.dim = int(projection.out_features)
        self.eval()

    def project(self, features: Tensor) -> Tensor:
        """CLS features (..., width), from `cls` or a cache, as unit vectors in the shared space (..., d)."""
        return F.normalize(self.projection(features), dim=-1)

    def image_features(self, images: Tensor, edit: Edit | None = None) -> Tensor:
        """L2-normalised image embeddings, (n, d)."""
        return self.project(self.cls(images, edit))

    def spatial(self, images: Tensor) -> Tensor:
        """L2-normalised embeddings of the patches, (n, M, d): what methods with local features compare with texts."""
        return self.project(self(images, rows=self.tokens)[:, 1:])

    def class_prompts(self, class_names: Sequence[str], length: int) -> Prompts:
        """`X ... X name.` for every class, tokenised once; `text_features` replaces the ``length`` placeholders."""
        return self.text.class_prompts(class_names, length)

    def text_features(self, context: Tensor, prompts: Prompts) -> Tensor:
        """L2-normalised embeddings of all classes for all stacked clients, contexts (K, m, d_t) to (K, C, d).

        Contexts (K, C, L, m, d_t) are one per class, for the first L blocks.

        One call per step: its cost grows with clients times classes, not with images.
        """
        features: Tensor = self.text(prompts, context)
        return features

    @torch.no_grad()
    def template_features(self, class_names: Sequence[str], templates: Sequence[str] | None = None) -> Tensor:
        """L2-normalised embeddings of all classes under hand-written templates, (C, d).

        Several templates are an ensemble: the mean of their normalised embeddings, normalised again.
        """
        templates = self.templates if templates is None else templates
        each = [self.text(self.text.tokenise(fill_template(template, class_names)))[0] for template in templates]
        return F.normalize(torch.stack(each).mean(0), dim=-1)
