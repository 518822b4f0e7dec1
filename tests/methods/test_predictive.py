"""The contract of scores: `log_softmax(scores)` are the log-probabilities that a method predicts with.

Where the training loss is the cross-entropy of these very probabilities, it says what they are, CLIP's temperature
included. Where a loss has further terms, a parameter takes them away.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.rng import torch_rng
from fedprompt.harness.conformance.lab import ALL, after_rounds
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import TextMethod, registry

CROSS_ENTROPY_ALONE: dict[str, dict[str, Any]] = {
    "sgpt": {"groups": 1, "key_weight": 0.0},  # groups are chosen by popularity in training alone
    "pfedprompt": {"alpha": 0.0},  # the memory is for predictions alone
    "fedpgp": {"mu": 0.0},
    "fedtpg": {"label_space": "all"},
    "fedmvp": {"label_space": "all", "consistency": 0.0},
    "fedmgp": {"groups": 1, "exchanged": 1, "diversity": 0.0},
    "kgcoop": {"guidance": 0.0},
    "promptsrc": {"text_pull": 0.0, "image_pull": 0.0, "logit_pull": 0.0, "spread": 0.0},
    "fedsept": {"diversity": 0.0, "dropout": 0.0},
    "focoop": {"outside": 0, "robust": False},
}
NO_CROSS_ENTROPY = ("pfedbayespt-g", "pfedbayespt", "fedpha", "fedpurel")  # a bound; two contexts, one after the other


def scores_and_labels(federation: Federation, state: FederationState) -> tuple[Tensor, Tensor, Tensor]:
    """Of the clients' first training images: what is predicted, the truth, and the training loss."""
    method, data, places = federation.method, federation.data, [torch.arange(5)] * len(ALL)
    _, theta = federation.theta(state, ALL)
    if "kept" in theta:  # pFedMoAP predicts with what it held in its last visit; here that is what it holds now
        theta |= {"own": theta["context"], "kept": theta["experts"], "kept.present": theta["present"]}

    def rngs() -> list[torch.Generator]:
        return [torch_rng(0, "noise", "conformance", client) for client in ALL]

    seen = data.batch(ALL, "train", places, rngs(), hooks.stages(method, 1)[-1].name)
    seen = replace(seen, start={**theta, **hooks.begin_visit(method, theta, 2)})
    constants = hooks.begin_evaluation(method, theta, data.ordered(ALL, "train", 8))
    asked = replace(data.batch(ALL, "train", places, rngs(), "evaluate"), start=constants, given_labels=None)
    with torch.no_grad():
        return method.predict(theta, asked), seen.labels, method.loss(theta, seen)


@pytest.mark.parametrize("name", [name for name in registry().names() if name not in NO_CROSS_ENTROPY])
def test_scores_are_the_logits_of_the_training_loss(name: str) -> None:
    scores, labels, loss = scores_and_labels(*after_rounds(registry().get(name), CROSS_ENTROPY_ALONE.get(name), 2))
    likelihood = -scores.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(likelihood.mean(1), loss, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["pfedbayespt-d", "pfedbayespt-g", "pfedbayespt"])
def test_scores_of_averaged_draws_are_log_probabilities(name: str) -> None:
    scores, _, _ = scores_and_labels(*after_rounds(registry().get(name), None, 1))
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(scores.shape[:2]))


def test_fedpha_predicts_with_the_logits_of_its_own_context() -> None:
    federation, state = after_rounds(registry().get("fedpha"), None, 2)
    scores, labels, _ = scores_and_labels(federation, state)
    _, theta = federation.theta(state, ALL)
    batch = federation.data.batch(ALL, "train", [torch.arange(5)] * len(ALL), ())
    expected = TextMethod.loss(federation.method, theta, batch)  # type: ignore[arg-type]
    torch.testing.assert_close(F.cross_entropy(scores.mT, labels, reduction="none").mean(1), expected)
