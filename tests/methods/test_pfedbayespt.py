"""State, masks, passes, prediction and adaptation of pFedBayesPT."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.bayes_toy import ALL, FULL, D, G, batch_of, build, loss_of, pass_of, probabilities
from torch import Tensor

from fedprompt.backbones.backbone import Prompted, insert
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance import toy
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.measuring.evaluation import adapt, evaluate
from fedprompt.methods._densities import Gaussian
from fedprompt.methods._headed import linear
from fedprompt.methods.pfedbayespt import PFedBayesPT

# -- state -----------------------------------------------------------------------------------------------------------


def test_shapes_of_the_state() -> None:
    server = toy_federation(FULL, {"hidden": 6, "instance_length": 2, "depth_instance": 2}, head="local").start().server
    shapes = {name: tuple(tensor.shape) for name, tensor in server.items()}
    mlp = {"0.weight": (2, 6, 17), "0.bias": (2, 6), "1.weight": (2, 2, 6), "1.bias": (2, 2)}
    assert shapes == {
        "prompts": (3, 10, 32),
        "encoder.ln.weight": (2, 32),
        "encoder.ln.bias": (2, 32),
        **{f"encoder.mean.{name}": shape for name, shape in mlp.items()},
        **{f"encoder.logvar.{name}": shape for name, shape in mlp.items()},
    }


def test_the_deterministic_variant_has_no_variance() -> None:
    assert not any("logvar" in name for name in toy_federation(D).start().server)


@pytest.mark.parametrize(
    ("params", "start"), [({}, -4.0), ({"logvar_init": -2.0}, -2.0), ({"paper_literal": True}, 0.0)]
)
def test_first_log_variance(params: dict[str, Any], start: float) -> None:
    assert toy_federation(FULL, params).start().server["encoder.logvar.1.bias"].eq(start).all()


def test_the_vpt_prior_has_the_scale_of_the_first_prompts() -> None:
    federation, method, _ = build(FULL, prior="vpt_scale", length=400)
    std = math.exp(method.prior_logvar / 2)
    assert std == pytest.approx(float(federation.start().server["prompts"].std()), rel=0.02)
    assert method.params.first_logvar(method.prior_logvar) == method.prior_logvar
    assert federation.start().server["encoder.logvar.1.bias"].eq(method.prior_logvar).all()


def test_two_learning_rates() -> None:
    rates = build(FULL, lr=0.05, encoder_lr=0.002, prior="learned_global")[1].rates()
    slow = {name for name, rate in rates.items() if rate == 0.002}
    assert {name for name, rate in rates.items() if rate == 0.05} == {"prompts", "head.weight", "head.bias"}
    assert slow == {name for name in rates if name.startswith(("encoder.", "prior."))}


def test_a_shift_of_all_channels_is_invisible_to_the_blocks() -> None:
    federation, method, theta = build(D)
    shifted = {**theta, "encoder.mean.1.bias": theta["encoder.mean.1.bias"] + 5}
    one, other = (method.predict(held, batch_of(federation)) for held in (theta, shifted))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert "encoder.mean.1.bias" not in method.rates()


# -- masks -----------------------------------------------------------------------------------------------------------


def masks_of(draws: int = 1, **params: Any) -> Tensor:
    federation, method, _ = build(FULL, **params)
    return torch.stack([mask for mask in method.masks(batch_of(federation), draws) if mask is not None])


def test_cls_is_always_seen_and_other_tokens_at_the_given_rate() -> None:
    masks = masks_of(draws=50)  # 50 draws x 12 images x 3 layers x 16 tokens
    assert masks.shape == (50, 12, 3, 17)
    assert masks[..., 0].eq(1).all()
    rate, spread = masks[..., 1:].mean(), math.sqrt(0.9 * 0.1 / masks[..., 1:].numel())
    assert rate == pytest.approx(0.9, abs=3 * spread)
    assert set(masks.unique().tolist()) == {0, 1}


def test_masks_differ_between_draws_images_and_layers() -> None:
    masks = masks_of(draws=2, mask_keep_prob=0.5)
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[:, 0], masks[:, 1])
    assert not torch.equal(masks[:, :, 0], masks[:, :, 1])


def test_masks_shared_by_layers() -> None:
    masks = masks_of(mask_share="layers", mask_keep_prob=0.5)
    assert torch.equal(masks[:, :, 0], masks[:, :, 1])
    assert not torch.equal(masks[:, 0], masks[:, 1])


def test_masks_shared_by_the_images_of_a_client() -> None:
    masks = masks_of(mask_share="batch", mask_keep_prob=0.5)
    assert torch.equal(masks[:, 0], masks[:, 5])
    assert not torch.equal(masks[:, 0], masks[:, 6])  # the other client's
    assert not torch.equal(masks[:, :, 0], masks[:, :, 1])


def test_rescaled_masks_keep_the_mean() -> None:
    masks = masks_of(mask_rescale=True, mask_position="after_ln", mask_keep_prob=0.5)
    assert set(masks.unique().tolist()) == {0, 1, 2}
    assert masks[..., 0].eq(1).all()


def test_the_deterministic_and_the_gaussian_variant_mask_nothing() -> None:
    for method in (D, G):
        federation, built, _ = build(method)
        assert built.masks(batch_of(federation), 3) == [None] * 3


# -- the prompted pass -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["propagate", "drop"])
@pytest.mark.parametrize(("depth_global", "depth_instance"), [(3, 3), (1, 2), (2, 1)])
def test_rows_that_enter_the_blocks(depth_global: int, depth_instance: int, after: str) -> None:
    """CLS, global prompts, instance prompts, patches; each renewed up to its depth, then kept or dropped."""
    options = {"depth_global": depth_global, "depth_instance": depth_instance, "after_depth": after}
    _, method, _ = build(D, **options, length=2)
    prompts, instance_rows = 10 + torch.rand(1, depth_global, 2, 4), 20 + torch.rand(1, depth_instance, 1, 4)
    seen: list[int] = []

    def instance(block: int, tokens: Tensor) -> Tensor:
        seen.append(tokens.shape[1])
        return instance_rows[:, block]

    edit, tokens = method.edit(prompts, instance), torch.zeros(1, 17, 4)
    for block in range(3):
        before, edited = tokens, edit(block, tokens)
        tokens, ending = edited if isinstance(edited, Prompted) else (edited, tokens[:, :0])
        stays = [after == "propagate" and block >= depth - 1 for depth in (depth_global, depth_instance)]
        ends = [block < depth and not stay for depth, stay in zip((depth_global, depth_instance), stays, strict=True)]
        assert tokens.shape[1] == 17 + 2 * stays[0] + stays[1]
        assert ending.shape[1] == 2 * ends[0] + ends[1]
        if block < depth_global:
            assert torch.equal(tokens[:, 1:3] if stays[0] else ending[:, :2], prompts[:, block])
        if block < depth_instance:
            row = tokens[:, 1 + 2 * stays[0]] if stays[1] else ending[:, -1]
            assert torch.equal(row, instance_rows[:, block, 0])
        if block >= max(depth_global, depth_instance) and after == "propagate":
            assert torch.equal(tokens, before)
    assert seen == [17] * depth_instance  # the encoders never read prompt rows


def test_prediction_is_that_of_the_blocks_with_rows_put_in_by_hand() -> None:
    federation, method, theta = build(D)
    batch = batch_of(federation)
    prompted = pass_of(method, theta, batch)
    rows = torch.cat([batch.rows(theta["prompts"]), prompted.prompt], dim=2)

    def edit(block: int, tokens: Tensor) -> Tensor:
        return insert(tokens if block == 0 else torch.cat([tokens[:, :1], tokens[:, 12:]], dim=1), rows[:, block])

    assert batch.images is not None
    features = method.backbone.cls(batch.images, edit)
    weight, bias = batch.rows(theta["head.weight"]), batch.rows(theta["head.bias"])
    expected = torch.einsum("ncd,nd->nc", weight, features) + bias
    torch.testing.assert_close(batch.pack(linear(prompted.features, theta)), expected, atol=1e-5, rtol=1e-5)


def test_encoders_give_one_prompt_per_image_and_layer() -> None:
    federation, method, theta = build(FULL, instance_length=2, depth_instance=2)
    batch = batch_of(federation)
    psi = pass_of(method, theta, batch, *method.masks(batch, 1)).psis[0]
    assert psi.mean.shape == psi.logvar.shape == (12, 2, 2, 32)


def test_frozen_and_inline_tokens_agree_at_the_first_block_only() -> None:
    frozen, inline = (build(G, feature_source=source, depth_instance=2) for source in ("frozen_pass", "inline"))
    batch, theta = batch_of(frozen[0]), frozen[2]
    one, other = (pass_of(m, theta, batch).psis[0] for _, m, _ in (frozen, inline))
    torch.testing.assert_close(one.mean[:, 0], other.mean[:, 0])
    torch.testing.assert_close(one.logvar[:, 0], other.logvar[:, 0])
    assert (one.mean[:, 1] - other.mean[:, 1]).abs().max() > 1e-4


@ALL
def test_kept_tokens_change_no_bit(method: type[PFedBayesPT], monkeypatch: pytest.MonkeyPatch) -> None:
    servers = []
    for memory in (0, 2**18, 2**30):
        monkeypatch.setattr(toy, "TOKEN_MEMORY", memory)
        federation = toy_federation(method)
        state = federation.start()
        for _ in range(2):
            federation.step(state)
        servers.append((state.server, evaluate(federation, state)))
    for server, records in servers[1:]:
        assert records == servers[0][1]
        assert all(torch.equal(server[name], tensor) for name, tensor in servers[0][0].items())


def test_an_isotropic_posterior_has_one_variance_per_layer() -> None:
    federation, method, theta = build(G, cov="isotropic", instance_length=2)
    batch = batch_of(federation)
    logvar = pass_of(method, theta, batch).psis[0].logvar
    assert (logvar - logvar[..., :1, :1]).abs().max() == 0
    assert not torch.equal(logvar[:, 0], logvar[:, 1])


def test_the_log_variance_is_held_in_its_range() -> None:
    federation, method, theta = build(G)
    theta["encoder.logvar.1.bias"] = torch.full_like(theta["encoder.logvar.1.bias"], 50)
    batch = batch_of(federation)
    assert pass_of(method, theta, batch).psis[0].logvar.eq(4).all()


def test_noise_moves_the_prompt_by_sigma() -> None:
    psi = Gaussian(torch.tensor([1.0]), torch.tensor([2 * math.log(0.5)]))
    assert psi.draw(torch.tensor([2.0])).item() == pytest.approx(2.0)
    assert psi.draw(None).item() == 1.0


# -- prediction ------------------------------------------------------------------------------------------------------


@ALL
def test_probabilities_sum_to_one_and_repeat(method: type[PFedBayesPT]) -> None:
    once, twice = probabilities(method), probabilities(method)
    torch.testing.assert_close(once.sum(-1), torch.ones(2, 6))
    assert torch.equal(once, twice)


def test_draws_are_nested_and_their_probabilities_averaged() -> None:
    federation, method, theta = build(FULL, mask_keep_prob=0.5)
    batch = batch_of(federation, stage="evaluate")
    masks, view = method.masks(batch, 10), method.view(theta, batch)
    each = torch.stack([linear(method.forward(view, [mask], None).features, theta).softmax(-1) for mask in masks])
    for v in (1, 2, 5, 10):
        averaged = probabilities(FULL, mask_keep_prob=0.5, samples=v)
        torch.testing.assert_close(averaged, each[:v].mean(0))
        torch.testing.assert_close(averaged, each[:v].flip(0).mean(0))


def test_one_training_shows_every_v() -> None:
    federation, method, theta = build(FULL, mask_keep_prob=0.5, samples=3)
    by_draws = method.predictions(theta, batch_of(federation, stage="evaluate"))
    assert list(by_draws) == list(range(11))
    assert torch.equal(by_draws[0], by_draws[3])
    for v in (1, 3, 10):
        torch.testing.assert_close(by_draws[v].exp(), probabilities(FULL, mask_keep_prob=0.5, samples=v))


def test_more_draws_than_the_sweep_has() -> None:
    federation, method, theta = build(FULL, mask_keep_prob=0.5, samples=12)
    by_draws = method.predictions(theta, batch_of(federation, stage="evaluate"))
    torch.testing.assert_close(by_draws[0].exp(), probabilities(FULL, mask_keep_prob=0.5, samples=12))


def test_what_is_not_random_has_no_sweep() -> None:
    federation, method, theta = build(D)
    assert list(method.predictions(theta, batch_of(federation, stage="evaluate"))) == [0]


def test_without_masks_the_number_of_draws_is_irrelevant() -> None:
    assert torch.equal(probabilities(FULL, mask_keep_prob=1, samples=1), probabilities(FULL, mask_keep_prob=1))
    assert torch.equal(probabilities(G, samples=5), probabilities(G))


def test_isolating_rows() -> None:
    assert not torch.equal(probabilities(D, mask_keep_prob=0.5, samples=5), probabilities(D))
    sampled = {"test_prompt": "sampled", "logvar_init": 2.0}
    one, five = (probabilities(G, **sampled, samples=v) for v in (1, 5))
    assert not torch.equal(one, five)
    assert not torch.equal(loss_of(D, mask_keep_prob=0.5), loss_of(D))


# -- new clients -----------------------------------------------------------------------------------------------------


@ALL
def test_a_new_client_fits_its_head_by_cross_entropy(method: type[PFedBayesPT]) -> None:
    mean, sampled = (
        loss_of(method, stage="adapt", unseen_head_prompt=rule, mask_keep_prob=0.5) for rule in ("mean", "sampled")
    )
    assert not torch.equal(mean, sampled)
    federation, built, theta = build(method)
    batch = batch_of(federation)
    plain = linear(pass_of(built, theta, batch).features, theta)
    expected = torch.nn.functional.cross_entropy(plain.flatten(0, 1), batch.labels.flatten(), reduction="none")
    torch.testing.assert_close(mean, expected.view(2, 6).mean(1))


def test_adaptation_moves_the_head_alone() -> None:
    federation = toy_federation(FULL)
    state = federation.start()
    before, after = federation.theta(state, [3])[1], adapt(federation, state, [3], 1)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}


# -- diagnostics, errors ---------------------------------------------------------------------------------------------


def test_diagnostics_are_logged_every_round() -> None:
    federation = toy_federation(FULL)
    log = federation.step(federation.start())
    assert set(log.diagnostics) == {"ce", "mu", "mu_between", "delta", "a_s", "sigma", "kl"}
    assert set(toy_federation(D).step(toy_federation(D).start()).diagnostics) == {"ce", "mu", "mu_between"}


def test_diagnostics_of_a_known_posterior() -> None:
    federation, method, theta = build(G, hidden=0, ln_affine=False)
    flat = {name: torch.zeros_like(t) if name.startswith("encoder.") else t for name, t in theta.items()}
    flat["encoder.mean.0.bias"] += 2.0
    flat["encoder.logvar.0.bias"] += 2 * math.log(0.5)
    logged = method.diagnostics(flat, batch_of(federation))
    kl = 96 * 0.5 * (2**2 + 0.5**2 - 1 - 2 * math.log(0.5))
    numbers = {"mu": 2.0, "mu_between": 0.0, "delta": 0.0, "a_s": 0.0, "sigma": 0.5, "kl": kl}
    for name, value in numbers.items():
        assert logged[name].tolist() == pytest.approx([value] * 2, rel=1e-5, abs=1e-6)


def test_far_apart_masks_saturate_the_mixture() -> None:
    federation, method, theta = build(FULL, logvar_init=-10, mask_keep_prob=0.5)
    logged = method.diagnostics(theta, batch_of(federation))
    assert logged["delta"].max() < -20
    assert logged["a_s"].tolist() == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"mask_rescale": True}, "mask_position=after_ln"),
        ({"kl": "analytic", "importance": 2}, "set kl=sampled"),
        ({"depth_global": 4}, "depth_global = 4"),
        ({"depth_instance": 4}, "has 3 blocks"),
    ],
)
def test_wrong_parameters_are_told_in_one_line(params: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        toy_federation(FULL, params)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("head", ["local", "global"])
def test_who_owns_the_head(head: str) -> None:
    federation = toy_federation(FULL, head=head)
    assert ("head.weight" in federation.start().server) is (head == "global")


def test_variants_differ_in_their_defaults_only() -> None:
    plain, full = G.Params(), FULL.Params()
    changed = {f.name for f in dataclasses.fields(full) if getattr(full, f.name) != getattr(plain, f.name)}
    assert changed == {"mask_keep_prob", "mixture", "kl", "samples"}
