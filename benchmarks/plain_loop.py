"""FedVPT-D as most people would write it: one client after the other, timm's own forward pass, torch's own optimiser.

What `make perf` compares a stacked round with, and what other simulators run in `make perf-peers`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import State, weighted_mean


def forward(vit: Any, pixels: Tensor, prompts: Tensor) -> Tensor:
    """CLS features with prompts (depth, T, d) in every block, through all rows of every block."""
    tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(pixels)))
    length = prompts.shape[1]
    for index, block in enumerate(vit.blocks):
        rest = tokens[:, 1:] if index == 0 else tokens[:, 1 + length :]
        tokens = block(torch.cat([tokens[:, :1], prompts[index].expand(len(tokens), -1, -1), rest], 1))
    features: Tensor = vit.norm(tokens)[:, 0]
    return features


def train_client(federation: Federation, state: Mapping[str, Tensor], client: int, round_: int) -> State:
    """A visit of ``client``: the batches that the harness would give it, in its order."""
    protocol, vit = federation.protocol, federation.method.backbone
    names = ("prompts", "head.weight", "head.bias")
    trained = {name: state[name].clone().requires_grad_() for name in names}
    rate = federation.method.params.lr
    optimiser = torch.optim.SGD(trained.values(), rate, protocol.momentum, weight_decay=protocol.weight_decay)
    order = torch_rng(federation.seed, "batches", round_, client)
    for _ in range(protocol.epochs):
        for batch in federation.data.epoch([client], protocol.batch_size, [order], [torch.Generator()], "train"):
            pixels = (batch.images.to(vit.mean.dtype) - vit.mean) / vit.std
            features = forward(vit.vit, pixels, trained["prompts"])
            loss = F.cross_entropy(F.linear(features, trained["head.weight"], trained["head.bias"]), batch.labels[0])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return {name: tensor.detach() for name, tensor in trained.items()}


def round_of(federation: Federation, server: State, clients: Sequence[int], round_: int = 1) -> State:
    """One round of ``clients``, averaged by their numbers of images."""
    visits = [train_client(federation, server, client, round_) for client in clients]
    weights = federation.weights(clients)
    return {name: weighted_mean(torch.stack([visit[name] for visit in visits]), weights) for name in server}
