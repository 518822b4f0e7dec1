"""Encoders over the token axis, against torch's own layers applied literally."""

import pytest
import torch
from torch import Tensor, nn

from fedprompt.methods import _token_encoder
from fedprompt.methods._token_encoder import mlp_init, norm_init, normalised

LAYERS, TOKENS, WIDTH, ROWS = 3, 5, 8, 2


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def weights(hidden: int = 6, affine: bool = True) -> dict[str, Tensor]:
    state = mlp_init("mean", LAYERS, TOKENS, hidden, ROWS, rng())
    if affine:
        norm = norm_init(LAYERS, WIDTH)
        state |= {name: tensor + 0.3 * torch.randn(tensor.shape, generator=rng()) for name, tensor in norm.items()}
    return state


def features() -> Tensor:
    return torch.randn(4, LAYERS, TOKENS, WIDTH, generator=rng()) * 3 + 1


def bits() -> Tensor:
    return (torch.rand(4, LAYERS, TOKENS, generator=rng()) < 0.6).float()


def literally(state: dict[str, Tensor], tokens: Tensor, mask: Tensor, layer: int, position: str) -> Tensor:
    """LN, transpose, MLP, transpose, by torch's modules."""
    norm = nn.LayerNorm(WIDTH)
    norm.load_state_dict({"weight": state["ln.weight"][layer], "bias": state["ln.bias"][layer]})
    hidden = state["mean.0.weight"].shape[1]
    first, second = nn.Linear(TOKENS, hidden), nn.Linear(hidden, ROWS)
    for index, part in enumerate((first, second)):
        part.load_state_dict({kind: state[f"mean.{index}.{kind}"][layer] for kind in ("weight", "bias")})
    masked = norm(tokens * mask[..., None]) if position == "before_ln" else norm(tokens) * mask[..., None]
    with torch.no_grad():
        return second(nn.functional.gelu(first(masked.mT))).mT


def encode(state: dict[str, Tensor], z: Tensor, mask: Tensor | None = None, position: str = "before_ln") -> Tensor:
    """Rows (n, layers, rows, channels) of MLP `mean` of a single client, for one mask."""
    one = {name: tensor[None] for name, tensor in state.items()}
    masks, tokens = None if mask is None else mask[None], z.permute(1, 2, 0, 3)
    (rows,) = _token_encoder.encode(one, ["mean"], tokens, masks, [len(z)], "gelu", position)  # type: ignore[arg-type]
    return rows[0]


@pytest.mark.parametrize("position", ["before_ln", "after_ln"])
def test_encode_is_ln_and_mlp_on_masked_tokens(position: str) -> None:
    state, f, m = weights(), features(), bits()
    rows = encode(state, normalised(f), m, position)
    assert rows.shape == (4, LAYERS, ROWS, WIDTH)
    for layer in range(LAYERS):
        expected = literally(state, f[:, layer], m[:, layer], layer, position)
        torch.testing.assert_close(rows[:, layer], expected, atol=1e-5, rtol=1e-5)


def test_no_mask_is_a_mask_of_ones() -> None:
    state, z = weights(), normalised(features())
    torch.testing.assert_close(encode(state, z), encode(state, z, torch.ones(4, LAYERS, TOKENS)))


def test_mask_positions_agree_without_an_ln_bias() -> None:
    state, z = {**weights(), "ln.bias": torch.zeros(LAYERS, WIDTH)}, normalised(features())
    before, after = (encode(state, z, bits(), where) for where in ("before_ln", "after_ln"))
    torch.testing.assert_close(before, after)


def test_linear_encoder() -> None:
    state, z = weights(hidden=0, affine=False), normalised(features())
    assert set(state) == {"mean.0.weight", "mean.0.bias"}
    expected = state["mean.0.weight"] @ z + state["mean.0.bias"][..., None]
    torch.testing.assert_close(encode(state, z), expected)


def test_channels_are_treated_alike_and_tokens_are_not() -> None:
    state, z = weights(affine=False), normalised(features())
    rows = encode(state, z)
    order = torch.randperm(WIDTH, generator=rng())
    torch.testing.assert_close(encode(state, z[..., order]), rows[..., order])
    assert (encode(state, z.flip(-2)) - rows).abs().max() > 0.1


def test_clients_masks_and_mlps_in_one_call_are_each_by_itself() -> None:
    """Three clients, one without images, two masks, two MLPs."""
    states = [weights() | mlp_init("logvar", LAYERS, TOKENS, 6, ROWS, rng()) for _ in range(3)]
    for client, state in enumerate(states):
        state["mean.0.weight"] *= 1 + client
    z, masks = normalised(features()), torch.stack([bits(), bits().flip(0)])
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    mean, logvar = _token_encoder.encode(stacked, ["mean", "logvar"], z.permute(1, 2, 0, 3), masks, [1, 0, 3])
    assert mean.shape == logvar.shape == (2, 4, LAYERS, ROWS, WIDTH)
    for mask in range(2):
        for client, images in ((0, slice(0, 1)), (2, slice(1, 4))):
            alone = encode(states[client], z[images], masks[mask][images])
            torch.testing.assert_close(mean[mask, images], alone)


def test_a_token_of_zeros_stays_finite() -> None:
    assert normalised(torch.zeros(1, 4)).eq(0).all()


def test_mlps_begin_as_torch_begins_them() -> None:
    state = mlp_init("mean", 12, 197, 64, 1, rng())
    assert state["mean.0.weight"].abs().max() == pytest.approx(197**-0.5, rel=1e-3)
    assert state["mean.1.weight"].abs().max() <= 1 / 8
    assert not torch.equal(state["mean.0.weight"][0], state["mean.0.weight"][1])


@pytest.mark.parametrize(("hidden", "floats"), [(0, 23_184), (32, 171_288), (64, 324_120), (128, 629_784)])
def test_floats_of_twelve_layers_of_vit_b(hidden: int, floats: int) -> None:
    mlps = [mlp_init(name, 12, 197, hidden, 1, rng()) for name in ("mean", "logvar")]
    assert sum(tensor.numel() for state in (*mlps, norm_init(12, 768)) for tensor in state.values()) == floats
