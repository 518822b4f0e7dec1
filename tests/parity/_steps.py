"""One batch in the authors' code and in ours: scores, losses, gradients, and a few steps of SGD.

Every function returns the largest absolute difference of each quantity of its case.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from fedprompt.methods import Batch, Method, Stage, State
from fedprompt.methods.zs_clip import ZsClip
from parity._feed import Alter, Case, Lab, build, clip_tower, gap, lab

Differences = dict[str, float]
Comparison = Callable[[Case, Alter], Differences]
CASES = {  # files of single steps: prefixes of their cases; the first case has the weights of those without any
    "dp_fpl": ("dp_fpl/",),
    "fedclip": ("inbatch/",),
    "fedmgp": ("code_sign/", "paper_sign/"),
    "fedmvp": ("repaired/",),
    "fedotp": ("converged/", "half_mass/", "small_eps/", "sinkhorn/"),
    "fedpgp": ("fedpgp/",),
    "fedpha": ("rho_0.8/", "rho_0.5/"),
    "fedsa_lora": ("lora/",),
    "fedtpg": ("local/", "all/"),
    "pfedmma": ("published_scale/", "large_scale/"),
    "pfedmoap": ("code/", "no_local/", "paper_scale/"),
    "promptfl": ("coop/", "promptfl/"),
    "promptfolio": ("promptfolio/",),
    "vpt": ("shallow/", "deep/"),
}


def weights_of(case: Case) -> State:
    """``theta`` of the case, or that of the file's first case where it has none of its own."""
    first = Case(case.file, CASES[case.file][0])
    return case.state("theta.") or first.state("theta.")


def scores(case: Case, alter: Alter, **options: Any) -> Differences:
    """Scores, loss and gradients, with further ``options`` of our class."""
    ours = lab(case, alter, **options)
    theta, batch = weights_of(case), ours.batch()
    differences = {"logits": gap(ours.logits(theta, batch), case.tensor("logits"))}
    loss, grads = ours.gradients(theta, batch, case.names("grad."))
    if "loss" in case:
        differences["loss"] = gap(loss, case.tensor("loss"))
    differences |= {f"grad.{name}": gap(grad, case.tensor(f"grad.{name}")) for name, grad in grads.items()}
    return differences


def step(case: Case, alter: Alter, **options: Any) -> Differences:
    """The same, and tensors after a few steps of plain SGD, if the case has them."""
    ours, differences = lab(case, alter, **options), scores(case, alter, **options)
    expected, sgd = case.state("after."), case.json("sgd")
    if expected:
        stages = [Stage("train", case.json("rates"), int(sgd["steps"]))]
        trained = ours.visit(weights_of(case), stages, [[ours.batch()]] * int(sgd["steps"]), sgd)
        differences |= {f"after.{name}": gap(trained[name], tensor) for name, tensor in expected.items()}
    return differences


def fed_to(method: type[Method]) -> Comparison:
    """A comparison for another of our classes, whose loss is that of the class that the case names."""
    return lambda case, alter: scores(case, lambda _: alter(method))


def through_the_decomposition(case: Case, alter: Alter) -> Differences:
    """FedPHA's gradient where the subspace is no constant."""
    ours = lab(case, alter, svd_gradient=True)
    _, grads = ours.gradients(weights_of(case), ours.batch(), ["context"])
    return {"grad.context": gap(grads["context"], case.tensor("unrepaired.grad.context"))}


def dp_fpl(case: Case, alter: Alter) -> Differences:
    """The power iteration begins where the authors' did: the batch draws the recorded start."""
    start = case.tensor("power_start")[:, None]
    with patch.object(Batch, "normal", return_value=start):
        return step(case, alter)


def fedmgp(case: Case, alter: Alter) -> Differences:
    """Groups of a client with the server's slots in their places. Steps by hand: the end of a stage draws again."""
    ours, names = lab(case, alter), list(case.json("rates"))
    theta, batch, sgd = weights_of(case), ours.batch(), case.json("sgd")
    loss, grads = ours.gradients(theta, batch, names)
    differences = {
        "logits": gap(ours.logits(theta, batch), case.tensor("logits")),
        "loss": gap(loss, case.tensor("loss")),
    }
    for kind in ("text", "visual"):
        differences[f"grad.{kind}"] = gap(ours.held({**theta, **grads}, kind), case.tensor(f"grad.held.{kind}"))
    momenta = {name: torch.zeros_like(theta[name]) for name in names}
    for _ in range(int(sgd["steps"])):
        _, grads = ours.gradients(theta, batch, names)
        for name, rate in case.json("rates").items():
            momenta[name] = sgd["momentum"] * momenta[name] + grads[name] + sgd["weight_decay"] * theta[name]
            theta[name] = theta[name] - rate * momenta[name]
    for kind in ("text", "visual"):
        differences[f"after.{kind}"] = gap(ours.held(theta, kind), case.tensor(f"after.held.{kind}"))
    return differences


def words(case: Case, alter: Alter) -> Differences:
    """A context that begins as hand-written words."""
    ours = lab(case, alter)
    context = ours.first_server()["context"]
    theta = {"context": context.expand(2, -1, -1)}
    return {
        "first context": gap(context, case.tensor("first_context")),
        "logits": gap(ours.logits(theta, ours.batch()), case.tensor("logits")),
    }


def zero_shot(case: Case, alter: Alter) -> Differences:
    """Scores of the hand-written template are cosines of the authors' embeddings, times their scale."""
    ours = Lab(case, build(alter(ZsClip), {"template": "a photo of a {}."}))
    cosines = case.tensor("image_embedding") @ case.tensor("text_embedding").T
    expected = cosines * float(Case("towers_clip").array("logit_scale"))
    rows = Case("promptfl", "coop/")  # for the labels, which scores do not depend on
    batch = Lab(rows, ours.method).batch()
    theta: State = {}
    return {"logits": gap(ours.logits(theta, batch), expected)}


def towers(case: Case, alter: Alter) -> Differences:
    """CLIP's embeddings of images, of texts and of patches."""
    clip, source = clip_tower(), Case("towers_clip")
    images = source.tensor("images")
    names = source.array("class_names").tolist()
    return {
        "images": gap(clip.image_features(images), case.tensor("image_embedding")),
        "texts": gap(clip.template_features(names, ["a photo of a {}."]), case.tensor("text_embedding")),
        "patches": gap(clip.spatial(images), case.tensor("patch_embedding")),
    }
