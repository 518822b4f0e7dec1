import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.methods import Batch

SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


NOTHING = torch.empty(0)


def make(sizes: list[int], clients: list[int] | None = None) -> Batch:
    """Clients of these sizes, to predict. Noise is seeded by the client's number."""
    ids = clients or list(range(len(sizes)))
    rngs = [torch.Generator().manual_seed(client) for client in ids]
    return Batch(tuple(ids), None, tuple(sizes), NOTHING, NOTHING, rngs)


def numbered(*shape: int) -> Tensor:
    """1, 2, 3, ...: no zero that could be mistaken for padding."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


@given(SIZES)
def test_pack_undoes_pad_and_padding_is_zero(sizes: list[int]) -> None:
    batch, packed = make(sizes), numbered(sum(sizes), 2)
    padded = batch.pad(packed)
    assert torch.equal(batch.pack(padded), packed)
    assert padded[~batch.mask].eq(0).all()
    assert padded.shape == (*batch.shape, 2) == (len(sizes), max(sizes), 2)


def test_pad_keeps_every_client_to_its_own_line() -> None:
    assert make([2, 0, 1]).pad(torch.tensor([5, 6, 7])).tolist() == [[5, 6], [0, 0], [7, 0]]


def test_pad_passes_each_gradient_to_its_row() -> None:
    packed = torch.ones(3, requires_grad=True)
    (make([2, 1]).pad(packed) * torch.tensor([[2.0, 3.0], [4.0, 100.0]])).sum().backward()
    assert packed.grad is not None
    assert packed.grad.tolist() == [2, 3, 4]


@given(SIZES)
def test_rows_give_each_sample_its_clients_tensor(sizes: list[int]) -> None:
    batch, per_client = make(sizes), numbered(len(sizes), 3)
    rows = batch.rows(per_client)
    assert torch.equal(rows, batch.pack(per_client[:, None].expand(-1, max(sizes), -1)))


@given(SIZES)
def test_mean_is_over_real_samples_only(sizes: list[int]) -> None:
    batch = make(sizes)
    per_sample = torch.where(batch.mask, numbered(*batch.shape), 1000.0)
    expected = [row[:n].mean() if n else torch.tensor(0.0) for row, n in zip(per_sample, sizes, strict=True)]
    torch.testing.assert_close(batch.mean(per_sample), torch.stack(expected))


def test_an_absent_client_has_mean_zero_and_gradient_zero() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    batch = make([3, 0])
    mean = batch.mean(values)
    mean.sum().backward()
    assert mean.tolist() == [1, 0]
    assert values.grad is not None
    assert values.grad[1].tolist() == [0, 0, 0]


@given(SIZES, st.integers(0, 3))
def test_noise_does_not_depend_on_neighbours_or_padding(sizes: list[int], extra: int) -> None:
    batch = make([*sizes, max(sizes) + extra])
    together = [batch.normal(2), batch.uniform(2)]  # the second draw tells how much the first one took
    for client, size in enumerate(sizes):
        if size:
            alone = make([size], clients=[client])
            assert torch.equal(together[0][client, :size], alone.normal(2)[0])
            assert torch.equal(together[1][client, :size], alone.uniform(2)[0])
        assert together[0][client, size:].eq(0).all()


def test_noise_goes_on_from_batch_to_batch() -> None:
    batch = make([3])
    assert not torch.equal(batch.normal(), batch.normal())


def test_uniform_noise_is_in_the_unit_interval() -> None:
    draws = make([4000]).uniform()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(float(draws.mean()) - 0.5) < 0.02


def test_no_shape_waits_for_data() -> None:
    rngs = [torch.Generator() for _ in range(3)]
    batch = Batch((0, 1, 2), None, (2, 0, 4), NOTHING, NOTHING, rngs, device="meta")
    assert batch.rows(torch.empty(3, 5, device="meta")).shape == (6, 5)
    assert batch.pack(batch.normal(5)).shape == (6, 5)
    assert batch.mean(batch.uniform()).device.type == "meta"


def test_a_batch_for_prediction_has_no_labels() -> None:
    with pytest.raises(UserError, match=r"batches for prediction have no labels; .*batch\.shape"):
        _ = make([2]).labels


def test_a_full_batch_packs_without_a_copy() -> None:
    samples = numbered(2, 3, 4)
    assert make([3, 3]).pack(samples).data_ptr() == samples.data_ptr()
