"""CLIP with a ResNet as image tower: convolutions, then one attention over all places, read at its mean."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import BlockPass, Edit
from fedprompt.backbones.clip import TEMPLATE, FrozenCLIP
from fedprompt.backbones.text import TextTower

PIXELS_PER_PLACE = 32


class FrozenResNetCLIP(FrozenCLIP):
    """It takes no prompts: there are no blocks of tokens that they could enter. Features are image embeddings."""

    offers = frozenset({"images", "features", "text", "spatial tokens"})

    def __init__(
        self,
        resnet: Any,  # open_clip's ModifiedResNet
        text: TextTower,
        logit_scale: float,
        name: str,
        weights: str,
        mean: Sequence[float],
        std: Sequence[float],
        templates: Sequence[str] = (TEMPLATE,),
    ) -> None:
        nn.Module.__init__(self)  # there is no ViT
        self.resnet, self.text = resnet.requires_grad_(False), text.requires_grad_(False)
        self.projection = nn.Identity()  # the attention's output is in the shared space
        self.name, self.weights, self.templates = name, weights, tuple(templates)
        self.logit_scale = logit_scale
        self.dim = self.width = int(resnet.output_dim)
        self.depth, self.patch_size, self.image_size = 1, PIXELS_PER_PLACE, int(resnet.image_size)
        self.tokens = len(resnet.attnpool.positional_embedding)
        self.keep_statistics(mean, std)
        self.eval()  # batch norm keeps the statistics of its training

    def embed(self, images: Tensor) -> Tensor:
        """uint8 images to the input of the attention: the mean of all places, then the places, (n, 1+M, channels)."""
        net = self.resnet
        places = net.stem(self.pixels(images))
        for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
            places = layer(places)
        rows = places.flatten(2).transpose(1, 2)
        tokens: Tensor = torch.cat([rows.mean(1, keepdim=True), rows], dim=1) + net.attnpool.positional_embedding
        return tokens

    def forward(
        self,
        images: Tensor,
        edit: Edit | None = None,
        rows: int = 1,
        stop: int | None = None,
        block_pass: BlockPass | None = None,
    ) -> Tensor:
        """The attention's output for its first ``rows`` rows, (n, rows, d): row 0 is the image, the others its places.

        Only these are queries; every place is key and value.
        """
        if edit is not None or block_pass is not None or stop not in (None, 1):
            raise NotImplementedError(f"{self.name} has no blocks")  # `offers` keeps methods from asking
        tokens, pool, heads_count = self.embed(images), self.resnet.attnpool, int(self.resnet.attnpool.num_heads)

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:-1], heads_count, -1).transpose(1, 2)

        query, key, value = heads(pool.q_proj(tokens[:, :rows])), heads(pool.k_proj(tokens)), heads(pool.v_proj(tokens))
        attended = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = pool.c_proj(attended.transpose(1, 2).flatten(2))
        return output
