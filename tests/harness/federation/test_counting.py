"""Shapes seen before are not computed again; that must not show."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.conformance.toy import toy_backbone
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.counting import FusedAttention, counted
from fedprompt.harness.federation.training import train
from fedprompt.harness.planning.cost import meta_method, shape_federation
from fedprompt.methods import registry


# Not of text methods: torch's counter cannot follow a leaf that goes straight into a module, as a context does.
@pytest.mark.parametrize("name", registry().names(FrozenViT.offers))
def test_a_visit_counts_as_torch_counts_it(name: str) -> None:
    method = meta_method(name, toy_backbone().to("meta"), 4)
    federation = shape_federation(method, clients=1, batch_size=4)
    _, theta = federation.theta(federation.start(), [0])

    def visit() -> None:
        train(method, theta, hooks.stages(method, 1), federation.data, [0], federation.protocol, (0, 2))

    with FusedAttention(), FlopCounterMode(display=False) as reference:
        visit()
    for _ in range(2):
        with counted() as counter:
            visit()
        assert counter.flops == reference.get_total_flops()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_results_are_new_tensors_of_the_right_kind(device: str) -> None:
    layer = nn.Linear(3, 5, device=device)
    image = torch.zeros(2, 3, device=device)
    results: list[Tensor] = []
    for _ in range(2):
        with counted() as counter:
            results.append(layer(image).float().relu().T)
        assert counter.flops == 2 * 2 * 3 * 5
    first, second = results
    assert (first.shape, first.stride(), first.dtype) == (second.shape, second.stride(), second.dtype)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
    assert second.requires_grad
