import torch

from fedprompt.harness.conformance.lab import ALL, after_rounds, close, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods.kgcoop import KgCoOp
from fedprompt.methods.promptfl import PromptFL


def cosine_to_template(rounds: int, **params: float) -> float:
    federation, state = after_rounds(KgCoOp, params, rounds)
    assert isinstance(federation.method, KgCoOp)
    texts = federation.method.class_features(federation.theta(state, ALL)[1])
    return float((texts * federation.method.reference).sum(-1).mean())


def test_without_guidance_it_is_promptfl() -> None:
    _, state = after_rounds(KgCoOp, {"guidance": 0.0}, 2)
    close(after_rounds(PromptFL, {}, 2)[1].server, state.server, "without guidance", 1e-6)


def test_the_pull_is_the_mean_distance_to_the_template_times_its_weight() -> None:
    losses = []
    for guidance in (0.0, 2.0):
        federation = toy_federation(KgCoOp, {"guidance": guidance})
        _, theta = federation.theta(federation.start(), ALL)
        losses.append(federation.method.loss(theta, first_rows(federation, ALL, [3] * 4, "train", theta)))
    texts = federation.method.class_features(theta)  # type: ignore[attr-defined]
    reference = federation.method.backbone.template_features(("a", "b", "c", "d"), ["a photo of a {}."])  # type: ignore[attr-defined]
    distances = [sum(1 - float(texts[0, c] @ reference[c]) for c in range(4)) / 4] * 4
    torch.testing.assert_close(losses[1] - losses[0], 2 * torch.tensor(distances))


def test_a_strong_pull_brings_the_texts_to_the_template() -> None:
    assert cosine_to_template(0) < 0.96
    assert cosine_to_template(12, guidance=30) > 0.998 > cosine_to_template(12, guidance=0) + 0.02


def test_the_template_takes_no_gradient_and_is_encoded_once() -> None:
    federation = toy_federation(KgCoOp, participation=1.0)
    assert isinstance(federation.method, KgCoOp)
    assert not federation.method.reference.requires_grad
    encoded = []
    federation.method.backbone.text.register_forward_hook(lambda _, args, __: encoded.append(args[0].length))
    federation.step(federation.start())
    assert set(encoded) == {16}  # no template among them
