"""Number formats are for GPUs, part of a cell, and gone when the passes end."""

import pytest
import torch
from support.run_folders import a_cell

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_dataset, toy_federation, toy_partition
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.precision import PRECISIONS, autocast_as
from fedprompt.methods.fedvpt import FedVPT


def tf32() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_refused_on_the_cpu(precision: str) -> None:
    with pytest.raises(UserError, match=f"precision = '{precision}' is for GPUs"):
        toy_federation(FedVPT, precision=precision)


def test_full_precision_is_what_cells_had_before() -> None:
    assert "precision" not in a_cell().to_json()
    assert a_cell(precision="fp32").hash == a_cell().hash
    assert len({a_cell(precision=precision).hash for precision in PRECISIONS}) == 3


@pytest.mark.parametrize(("precision", "wanted"), [("fp32", False), ("tf32", True)])
def test_tf32_is_set_for_the_passes_alone(precision: str, wanted: bool) -> None:
    before = tf32()
    with autocast_as(precision, "cuda"):
        assert tf32() == (wanted, wanted)
    assert tf32() == before


def test_images_in_device_memory_are_the_same_images() -> None:
    needs = frozenset({"images"})
    kept = ClientData(toy_dataset(), toy_partition(), needs, device="meta", image_memory=2**30)
    copied = ClientData(toy_dataset(), toy_partition(), needs, device="meta", image_memory=8)
    places = [torch.arange(3), torch.arange(2)]
    one, two = (data.batch((0, 1), "train", places, ()) for data in (kept, copied))
    assert kept._kept_images is not None
    assert copied._kept_images is None
    assert one.images.shape == two.images.shape == (5, 3, 16, 16)
    assert one.images.device.type == "meta"
