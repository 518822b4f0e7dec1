"""What methods with text share: contexts, cosine scores, and how often the text tower runs."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import TRAIN_SIZES, toy_backbone, toy_clip, toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.federation.stacking import text_bytes
from fedprompt.harness.measuring.evaluation import adapt, evaluate
from fedprompt.methods import Task, registry
from fedprompt.methods.coop import CoOp
from fedprompt.methods.promptfl import PromptFL

TEXT_METHODS = [name for name in registry().names() if "text" in registry().get(name).needs]


def text_passes(federation: Federation) -> list[int]:
    """Clients in every call of the text tower from now on."""
    calls: list[int] = []
    backbone: Any = federation.method.backbone
    features = backbone.text_features

    def counted(context: torch.Tensor, prompts: Any) -> torch.Tensor:
        calls.append(len(context))
        return features(context, prompts)

    backbone.text_features = counted
    return calls


def test_logits_are_scaled_cosines_over_all_classes() -> None:
    federation = toy_federation(PromptFL)
    state, method = federation.start(), federation.method
    theta = federation.theta(state, ALL)[1]
    batch = first_rows(federation, ALL, [3] * 4, "evaluate", theta)
    clip: Any = method.backbone
    images = F.normalize(clip.projection(batch.features), dim=-1)
    texts = clip.text_features(theta["context"], clip.class_prompts(method.task.class_names, 16))
    expected = 100 * torch.einsum("kbd,kcd->kbc", images, texts)
    torch.testing.assert_close(method.predict(theta, batch), expected)


def test_a_context_has_the_shape_that_was_asked_for() -> None:
    context = toy_federation(PromptFL, {"length": 3}).start().server["context"]
    assert context.shape == (3, 16)
    assert 0.01 < float(context.std()) < 0.03


def test_words_that_are_not_as_long_as_the_context_are_refused() -> None:
    """A script that passes the text "False" for no words would otherwise train one token instead of sixteen."""
    with pytest.raises(UserError, match=r"ctx_init = 'False' has \d+ tokens, but length = 16"):
        toy_federation(PromptFL, {"ctx_init": "False"}).start()


def test_a_context_of_words_is_the_template() -> None:
    federation = toy_federation(PromptFL, {"ctx_init": "a photo of a", "length": 4})
    zero_shot = toy_federation(registry().get("zs-clip"))
    theta = federation.theta(federation.start(), ALL)[1]
    learned, fixed = (
        one.method.predict(held, first_rows(one, ALL, [4] * 4, "evaluate", held))
        for one, held in ((federation, theta), (zero_shot, {}))
    )
    torch.testing.assert_close(learned, fixed, atol=1e-5, rtol=1e-5)


def test_the_text_tower_runs_once_per_step_for_all_clients() -> None:
    federation = toy_federation(PromptFL, participation=1.0, epochs=2, batch_size=8)
    state = federation.start()
    calls = text_passes(federation)
    federation.step(state)
    assert calls == [4] * 2 * -(-max(TRAIN_SIZES) // 8)


def test_the_text_tower_runs_once_per_evaluation() -> None:
    federation = toy_federation(PromptFL, batch_size=2)
    state = federation.start()
    calls = text_passes(federation)
    evaluate(federation, state)
    assert calls == [4]


def test_a_backbone_without_text_is_refused_by_name() -> None:
    task = Task(("a", "b"), torch.ones(1, 2))
    with pytest.raises(UserError, match=r"'promptfl' needs text, which backbone 'toy' does not offer .*micro-clip"):
        PromptFL(PromptFL.Params(), toy_backbone(), task)


def test_more_classes_take_fewer_clients_per_stack() -> None:
    def text_bytes_of(classes: int) -> int:
        task = Task(tuple(f"letter {i % 10}" for i in range(classes)), torch.ones(1, classes), "none")
        return text_bytes(PromptFL(PromptFL.Params(), toy_clip(), task))

    assert 15 * text_bytes_of(10) < text_bytes_of(200) < 21 * text_bytes_of(10)


@pytest.mark.parametrize("name", TEXT_METHODS)
def test_methods_with_text_have_no_head(name: str) -> None:
    assert registry().get(name).paper_policy == "none"


def test_a_never_sampled_client_fits_only_what_is_private() -> None:
    federation = toy_federation(PromptFL, epochs=2)
    state = federation.start()
    held = adapt(federation, state, [3], 2, shared=False)
    assert torch.equal(held["context"][0], state.server["context"])
    private = toy_federation(CoOp, epochs=2)
    fitted = adapt(private, private.start(), [3], 2, shared=False)
    assert not torch.equal(fitted["context"][0], private.personal(private.start(), 3)["context"])
