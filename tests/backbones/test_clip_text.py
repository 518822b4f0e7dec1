import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import fill_template
from fedprompt.backbones.text import Prompts, spoken_name
from fedprompt.core.errors import UserError

open_clip = pytest.importorskip("open_clip")

from open_clip.model import CLIP  # noqa: E402
from support.tiny_clip import IMAGES, rebuilt, tiny_open_clip  # noqa: E402

NAMES = ("cat", "wine_glass", "airplane of doom")
LENGTH, WIDTH = 4, 48
CONTEXT = 0.1 * torch.randn(5, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))


def by_open_clip(model: CLIP, context: Tensor, names: tuple[str, ...] = NAMES) -> Tensor:
    """One context by open_clip's own transformer over all 77 tokens, its embeddings overwritten."""
    length = len(context)
    ids = open_clip.tokenize([f"{'X ' * length}{name.replace('_', ' ')}." for name in names])
    embedded = model.token_embedding(ids).clone()
    embedded[:, 1 : 1 + length] = context
    tokens = model.ln_final(model.transformer(embedded + model.positional_embedding, attn_mask=model.attn_mask))
    return F.normalize(tokens[torch.arange(len(ids)), ids.argmax(1)] @ model.text_projection, dim=-1)


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_class_features_are_open_clips(quick_gelu: bool) -> None:
    model = tiny_open_clip(quick_gelu=quick_gelu)
    clip = rebuilt(model)
    features = clip.text_features(CONTEXT, clip.class_prompts(NAMES, LENGTH))
    expected = torch.stack([by_open_clip(model, context) for context in CONTEXT])
    assert features.shape == (5, 3, 32)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def test_plain_texts_are_open_clips() -> None:
    model, texts = tiny_open_clip(), ["a photo of a cat.", "two dogs, and something much longer than that"]
    features = rebuilt(model).text
    expected = model.encode_text(open_clip.tokenize(texts), normalize=True)
    torch.testing.assert_close(features(features.tokenise(texts))[0], expected, atol=1e-5, rtol=0)


def test_a_projection_with_bias_and_layer_scale_are_open_clips() -> None:
    model = tiny_open_clip(text={"proj_bias": True, "ls_init_value": 0.5}, vision={"ls_init_value": 0.5})
    clip = rebuilt(model)
    expected = model.encode_text(open_clip.tokenize(["a cat"]), normalize=True)
    torch.testing.assert_close(clip.text(clip.text.tokenise(["a cat"]))[0], expected, atol=1e-5, rtol=0)


def test_prompts_are_cut_after_the_longest_end() -> None:
    prompts = rebuilt(tiny_open_clip()).class_prompts(NAMES, LENGTH)
    assert prompts.ids.shape == (3, 1 + LENGTH + 3 + 1 + 1)  # start, context, "airplane of doom", ".", end
    assert prompts.ids[torch.arange(3), prompts.ends].tolist() == [49407] * 3
    assert prompts.ids[:, 1 : 1 + LENGTH].unique().tolist() == [343]


def test_what_follows_the_end_changes_nothing() -> None:
    clip = rebuilt(tiny_open_clip())
    prompts = clip.class_prompts(NAMES, LENGTH)
    longer = Prompts(F.pad(prompts.ids, (0, 20), value=5), prompts.ends, LENGTH)
    torch.testing.assert_close(
        clip.text_features(CONTEXT, longer), clip.text_features(CONTEXT, prompts), atol=1e-5, rtol=0
    )


def test_the_gradient_of_a_context_is_open_clips() -> None:
    model = tiny_open_clip()
    clip, context = rebuilt(model), CONTEXT.clone().requires_grad_()
    target = torch.randn(3, 32, generator=torch.Generator().manual_seed(4))
    features = clip.text_features(context, clip.class_prompts(NAMES, LENGTH))
    (ours,) = torch.autograd.grad((features * target).sum(), context)
    expected = torch.stack([by_open_clip(model, c) for c in context])
    (theirs,) = torch.autograd.grad((expected * target).sum(), context)
    assert theirs.abs().max() > 1e-2
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_client_does_not_see_its_neighbours() -> None:
    clip = rebuilt(tiny_open_clip())
    prompts = clip.class_prompts(NAMES, LENGTH)
    alone = clip.text_features(CONTEXT[2:3], prompts)
    torch.testing.assert_close(clip.text_features(CONTEXT, prompts)[2:3], alone, atol=1e-6, rtol=0)


def test_each_token_is_embedded_once_per_client_or_once_per_client_and_class() -> None:
    """Prefixes cost per client, names per client and class; nothing costs per image."""
    clip, rows = rebuilt(tiny_open_clip()), 0

    def count(_: object, inputs: tuple[Tensor, ...]) -> None:
        nonlocal rows
        rows += inputs[0].shape[:-1].numel()

    clip.text.blocks[0].mlp.register_forward_pre_hook(count)
    prompts = clip.class_prompts(NAMES, LENGTH)
    clip.text_features(CONTEXT, prompts)
    assert rows == 5 * (1 + LENGTH) + 5 * 3 * (prompts.ids.shape[1] - 1 - LENGTH)


def test_the_words_of_a_template_as_context_are_that_template() -> None:
    clip = rebuilt(tiny_open_clip())
    context = clip.text.context_of("a photo of a")
    assert context.shape == (4, WIDTH)
    features = clip.text_features(context[None], clip.class_prompts(NAMES, 4))
    torch.testing.assert_close(features[0], clip.template_features(NAMES, ["a photo of a {}."]), atol=1e-5, rtol=0)


def test_several_templates_are_an_ensemble() -> None:
    clip = rebuilt(tiny_open_clip())
    one, two = (clip.template_features(NAMES, [template]) for template in ("a {}.", "the big {}"))
    both = clip.template_features(NAMES, ["a {}.", "the big {}"])
    torch.testing.assert_close(both, F.normalize(one + two, dim=-1))
    torch.testing.assert_close(both.norm(dim=-1), torch.ones(3))


def test_logits_do_not_depend_on_the_order_of_classes() -> None:
    clip = rebuilt(tiny_open_clip())
    scores = clip.image_features(IMAGES) @ clip.template_features(NAMES).T
    turned = clip.image_features(IMAGES) @ clip.template_features(NAMES[::-1]).T
    torch.testing.assert_close(scores, turned.flip(1), atol=1e-6, rtol=0)


def test_seventy_seven_tokens_are_not_cut_silently() -> None:
    clip = rebuilt(tiny_open_clip())
    assert clip.class_prompts(["cat"], 73).ids.shape == (1, 77)
    with pytest.raises(UserError, match=r"78 tokens, but the text tower takes 77; use fewer context tokens"):
        clip.class_prompts(["cat"], 74)


@pytest.mark.parametrize(("names", "length"), [(NAMES, 0), ((), 4)])
def test_no_context_and_no_classes_are_refused(names: tuple[str, ...], length: int) -> None:
    with pytest.raises(UserError, match="at least"):
        rebuilt(tiny_open_clip()).class_prompts(names, length)


def test_a_context_of_another_length_is_an_error() -> None:
    clip = rebuilt(tiny_open_clip())
    with pytest.raises(ValueError, match="for 3 tokens of width 48"):
        clip.text_features(CONTEXT, clip.class_prompts(NAMES, 3))


@pytest.mark.parametrize(
    ("template", "places"), [("a photo", "no places"), ("{} {}", "2 places"), ("{0}", "no places"), ("{", "no places")]
)
def test_a_template_has_one_place_for_the_name(template: str, places: str) -> None:
    with pytest.raises(UserError, match=f"has {places} for the class name; write {{}} once"):
        rebuilt(tiny_open_clip()).template_features(NAMES, [template])


@pytest.mark.parametrize("name", ["{}", "{0}", "%s"])
def test_braces_elsewhere_are_letters(name: str) -> None:
    assert fill_template("{x} {} {y}", [name]) == [f"{{x}} {name} {{y}}"]


@pytest.mark.parametrize(
    ("name", "text"), [("wine_glass", "wine glass"), ("7", "digit seven"), ("Ж", "cyrillic capital letter zhe")]
)
def test_names_are_spoken(name: str, text: str) -> None:
    assert spoken_name(name) == text


def test_contexts_of_several_blocks_are_overwritten_rows_of_open_clip() -> None:
    model = tiny_open_clip()
    contexts = 0.1 * torch.randn(2, 2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(4))
    clip = rebuilt(model)
    features = clip.text_features(contexts, clip.class_prompts(NAMES, LENGTH))
    for of_client, found in zip(contexts, features, strict=True):
        ids = open_clip.tokenize([f"{'X ' * LENGTH}{name.replace('_', ' ')}." for name in NAMES])
        tokens = model.token_embedding(ids).clone()
        tokens[:, 1 : 1 + LENGTH] = of_client[0]
        tokens = tokens + model.positional_embedding
        for index, block in enumerate(model.transformer.resblocks):
            if index == 1:  # the last of them; what becomes of it goes on to block 2
                tokens[:, 1 : 1 + LENGTH] = of_client[1]
            tokens = block(tokens, attn_mask=model.attn_mask)
        read = model.ln_final(tokens)[torch.arange(len(ids)), ids.argmax(1)] @ model.text_projection
        torch.testing.assert_close(found, F.normalize(read, dim=-1), atol=1e-5, rtol=0)


def test_a_context_of_one_block_is_the_context() -> None:
    clip = rebuilt(tiny_open_clip())
    prompts = clip.class_prompts(NAMES, LENGTH)
    assert torch.equal(clip.text_features(CONTEXT[:, None], prompts), clip.text_features(CONTEXT, prompts))


def test_there_are_no_contexts_for_blocks_that_do_not_exist() -> None:
    clip = rebuilt(tiny_open_clip())
    with pytest.raises(ValueError, match="contexts for 4 blocks, but the text tower has 3"):
        clip.text_features(torch.zeros(1, 4, LENGTH, WIDTH), clip.class_prompts(NAMES, LENGTH))
