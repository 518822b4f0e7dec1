from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fedprompt.backbones.backbone import Edit, FrozenViT, block_rows, deep, insert, shallow
from fedprompt.core.errors import UserError

DEPTH, WIDTH, PATCHES, LENGTH = 3, 32, 16, 5
IMAGES = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "qk_norm": {"qk_norm": True},
    "layer_scale": {"init_values": 0.5},
    "scaled_norms": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "no_qkv_bias": {"qkv_bias": False},
    "pre_norm": {"pre_norm": True},  # as CLIP's tower
    "no_embed_class": {"no_embed_class": True},  # as DeiT-3
}


def backbone(**options: Any) -> FrozenViT:
    """Three blocks of width 32 with no parameter left at a neutral first value, such as a zero bias."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        vit = VisionTransformer(
            img_size=16, patch_size=4, embed_dim=WIDTH, depth=DEPTH, num_heads=2, num_classes=0, **options
        )
        for parameter in vit.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return FrozenViT(vit, "test", "random", (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def all_rows(model: FrozenViT, edit: Callable[[int, Tensor], Tensor] = lambda _, tokens: tokens) -> Tensor:
    """Every block in full, by timm's own code."""
    tokens = model.embed(IMAGES)
    for index, block in enumerate(model.vit.blocks):
        tokens = block(edit(index, tokens))
    return model.vit.norm(tokens)


def block_lengths(model: FrozenViT, run: Callable[[], object]) -> list[int]:
    """How many rows each block reads: its tokens, and prompts that end with it."""
    seen = dict.fromkeys(range(DEPTH), 0)

    def watch(index: int) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def count(_: nn.Module, args: tuple[Tensor]) -> None:
            seen[index] += args[0].shape[1]

        return count

    hooks = [block.norm1.register_forward_pre_hook(watch(i)) for i, block in enumerate(model.vit.blocks)]
    run()
    for hook in hooks:
        hook.remove()
    return list(seen.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_prompts_it_is_timms_forward(variant: str) -> None:
    model = backbone(**VARIANTS[variant])
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.5, 0.4, 0.3), (0.5, 0.6, 0.7)))
    torch.testing.assert_close(model.cls(IMAGES), model.vit((IMAGES / 255 - mean) / std), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("variant", VARIANTS)
def test_last_block_for_few_rows_is_exact(variant: str, rows: int) -> None:
    model = backbone(**VARIANTS[variant])
    torch.testing.assert_close(model(IMAGES, rows=rows), all_rows(model)[:, :rows], atol=1e-5, rtol=1e-5)


def test_last_block_for_cls_only_has_the_full_gradient() -> None:
    model, prompt = backbone(), noise(4, LENGTH, WIDTH).requires_grad_()
    (short,) = torch.autograd.grad(model.cls(IMAGES, shallow(prompt)).square().sum(), prompt)
    (full,) = torch.autograd.grad(all_rows(model, shallow(prompt))[:, 0].square().sum(), prompt)
    torch.testing.assert_close(short, full, atol=1e-4, rtol=1e-4)


def test_stop_ends_after_that_many_blocks() -> None:
    model = backbone()
    two = model.vit.norm(model.vit.blocks[1](model.vit.blocks[0](model.embed(IMAGES))))[:, 0]
    torch.testing.assert_close(model.cls(IMAGES, stop=2), two, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("edit", [shallow(torch.zeros(4, 0, WIDTH)), deep(torch.zeros(4, DEPTH, 0, WIDTH))])
def test_prompts_of_length_zero_change_nothing(edit: Edit) -> None:
    model = backbone()
    assert torch.equal(model.cls(IMAGES, edit), model.cls(IMAGES))


def test_prompts_sit_between_cls_and_patches() -> None:
    tokens, prompt = torch.zeros(1, 3, 2), torch.ones(1, 2, 2)
    tokens[0, 0], tokens[0, 1:] = 7, 9
    assert insert(tokens, prompt)[0, :, 0].tolist() == [7, 1, 1, 9, 9]


def test_shallow_is_deep_with_one_prompted_block() -> None:
    model, prompt = backbone(), noise(4, LENGTH, WIDTH)
    assert torch.equal(model.cls(IMAGES, shallow(prompt)), model.cls(IMAGES, deep(prompt[:, None])))


def test_deep_replaces_the_rows_of_every_block() -> None:
    model, prompts = backbone(), noise(4, DEPTH, LENGTH, WIDTH)
    tokens = model.embed(IMAGES)
    for index, block in enumerate(model.vit.blocks):  # what earlier prompt rows became is never looked at
        tokens = block(torch.cat([tokens[:, :1], prompts[:, index], tokens[:, -PATCHES:]], dim=1))
    expected = model.vit.norm(tokens)[:, 0]
    torch.testing.assert_close(model.cls(IMAGES, deep(prompts)), expected, atol=1e-5, rtol=1e-5)


def test_rows_apart_are_what_a_block_pass_attends_to() -> None:
    model, prompts = backbone(), noise(4, DEPTH, LENGTH, WIDTH)
    whole = model.cls(IMAGES, deep(prompts), block_pass=lambda _, block, tokens, rows: block(tokens)[:, :rows])
    torch.testing.assert_close(model.cls(IMAGES, deep(prompts)), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_deep_prompts_have_the_gradient_of_whole_blocks(variant: str) -> None:
    model, prompts = backbone(**VARIANTS[variant]), noise(4, DEPTH, LENGTH, WIDTH).requires_grad_()

    def edit(block: int, tokens: Tensor) -> Tensor:
        return insert(torch.cat([tokens[:, :1], tokens[:, -PATCHES:]], dim=1), prompts[:, block])

    (apart,) = torch.autograd.grad(model.cls(IMAGES, deep(prompts)).square().sum(), prompts)
    (whole,) = torch.autograd.grad(all_rows(model, edit)[:, 0].square().sum(), prompts)
    torch.testing.assert_close(apart, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [17, 40])
def test_attention_is_timms_with_few_keys_and_with_many(tokens: int) -> None:
    block, x = backbone().vit.blocks[0], noise(2, tokens, WIDTH)
    torch.testing.assert_close(block_rows(block, x, tokens), block(x), atol=1e-5, rtol=1e-5)


def test_every_deep_prompt_has_a_gradient() -> None:
    model, prompts = backbone(), noise(4, DEPTH, LENGTH, WIDTH).requires_grad_()
    model.cls(IMAGES, deep(prompts)).square().sum().backward()
    assert prompts.grad is not None
    assert prompts.grad.abs().amax(dim=(0, 2, 3)).min() > 1e-3


@pytest.mark.parametrize(
    ("edit", "lengths"),
    [
        (shallow(noise(4, LENGTH, WIDTH)), [22, 22, 22]),
        (deep(noise(4, DEPTH, LENGTH, WIDTH)), [22, 22, 22]),
        (deep(noise(4, 1, LENGTH, WIDTH), after_depth="propagate"), [22, 22, 22]),
        (deep(noise(4, 1, LENGTH, WIDTH), after_depth="drop"), [22, 17, 17]),
        (deep(noise(4, 2, LENGTH, WIDTH), start=1), [17, 22, 22]),
        (deep(noise(4, 1, LENGTH, WIDTH), start=1, after_depth="drop"), [17, 22, 17]),
        (shallow(noise(4, LENGTH, WIDTH), at=2), [17, 17, 22]),
    ],
)
def test_tokens_in_every_block(edit: Edit, lengths: list[int]) -> None:
    model = backbone()
    assert block_lengths(model, lambda: model.cls(IMAGES, edit)) == lengths


def test_rows_after_the_last_prompted_block_propagate() -> None:
    model, prompts = backbone(), noise(4, 2, LENGTH, WIDTH)
    first, second, third = model.vit.blocks
    tokens = first(insert(model.embed(IMAGES), prompts[:, 0]))
    tokens = second(torch.cat([tokens[:, :1], prompts[:, 1], tokens[:, -PATCHES:]], dim=1))
    expected = model.vit.norm(third(tokens))[:, 0]
    torch.testing.assert_close(model.cls(IMAGES, deep(prompts)), expected, atol=1e-5, rtol=1e-5)


def test_drop_removes_the_prompts_and_not_the_patches() -> None:
    model, prompts = backbone(), noise(4, 1, LENGTH, WIDTH)
    first, second, third = model.vit.blocks
    tokens = first(insert(model.embed(IMAGES), prompts[:, 0]))
    kept = torch.cat([tokens[:, :1], tokens[:, -PATCHES:]], dim=1)
    expected = model.vit.norm(third(second(kept)))[:, 0]
    torch.testing.assert_close(model.cls(IMAGES, deep(prompts, after_depth="drop")), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "edit", [shallow, lambda p: deep(p[:, None].expand(-1, DEPTH, -1, -1))], ids=["shallow", "deep"]
)
def test_order_of_prompt_rows_does_not_matter(edit: Callable[[Tensor], Edit]) -> None:
    model, prompt = backbone(), noise(4, LENGTH, WIDTH)
    other = prompt[:, [4, 2, 0, 1, 3]]
    torch.testing.assert_close(model.cls(IMAGES, edit(prompt)), model.cls(IMAGES, edit(other)), atol=1e-5, rtol=1e-5)


def test_each_sample_has_its_own_prompt() -> None:
    model, prompts = backbone(), noise(4, DEPTH, LENGTH, WIDTH)
    alone = torch.cat([model.cls(IMAGES[i : i + 1], deep(prompts[i : i + 1])) for i in range(4)])
    torch.testing.assert_close(model.cls(IMAGES, deep(prompts)), alone, atol=1e-5, rtol=1e-5)
    assert (model.cls(IMAGES, deep(prompts.flip(0))) - alone).abs().max() > 1e-3


@pytest.mark.parametrize("depth", [None, 2])
def test_layer_inputs_are_what_enters_the_blocks(depth: int | None) -> None:
    model, seen = backbone(), []
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in model.vit.blocks]
    all_rows(model)
    for hook in hooks:
        hook.remove()
    assert torch.equal(model.layer_inputs(IMAGES, depth), torch.stack(seen[:depth], dim=1))


def test_dropout_stays_off_in_training_mode() -> None:
    model = backbone(pos_drop_rate=0.5, proj_drop_rate=0.5, attn_drop_rate=0.5, drop_path_rate=0.5)
    nn.Sequential(model).train()
    assert torch.equal(model.cls(IMAGES), model.cls(IMAGES))
    assert not any(module.training for module in model.modules())


def test_no_parameter_requires_a_gradient() -> None:
    assert not any(parameter.requires_grad for parameter in backbone().parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_base_patch14_reg4_dinov2", {}),  # register tokens
        ("vit_base_patch16_siglip_224", {}),  # no class token
        ("vit_small_patch16_18x2_224", {}),  # parallel blocks
        ("vit_base_patch16_224", {"global_pool": "avg"}),  # the feature is not CLS
        ("vit_base_patch16_224", {"global_pool": "map"}),
        ("vit_base_patch16_224", {"pos_embed": "none"}),
        ("vit_base_patch16_224", {"dynamic_img_size": True}),
        ("deit_base_distilled_patch16_224", {}),  # a second class token
        ("resnet18", {}),
    ],
)
def test_what_is_not_a_plain_vit_is_refused_in_one_line(name: str, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        vit = timm.create_model(name, num_classes=0, **options)
    with pytest.raises(UserError, match=f"'{name}' is not a plain ViT") as caught:
        FrozenViT(vit, name, "random", (0.5,) * 3, (0.5,) * 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "vit_tiny_patch16_384", "vit_base_patch14_dinov2"])
def test_plain_vits_are_taken(name: str) -> None:
    with torch.device("meta"):
        vit = timm.create_model(name, num_classes=0)
    model = FrozenViT(vit, name, "random", (0.5,) * 3, (0.5,) * 3)
    assert (model.depth, model.width) == (12, 192 if "tiny" in name else 768)
