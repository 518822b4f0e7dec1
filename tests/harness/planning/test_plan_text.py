"""What text methods cost: texts by client and step, images once; against a count by hand and against real runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.datasets import make_partition, parse_partition
from fedprompt.harness.federation.counting import counted
from fedprompt.harness.federation.schedule import select
from fedprompt.harness.federation.stacking import text_bytes
from fedprompt.harness.planning.cost import cost, meta_backbone, meta_method
from fedprompt.harness.planning.data import published
from fedprompt.harness.planning.plan import CellPlan, plan_suite
from fedprompt.harness.planning.tally import classes_of, tally_cells
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import run_cell
from fedprompt.harness.running.suite_file import load_suite, parse_suite

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to

# -- PromptFL on CIFAR-100 with ViT-B/16 by hand ----------------------------------------------------------------------

W, D, C, P = 512, 512, 100, 17  # width of the text tower, of the shared space; classes; start and 16 context tokens
VIT = 768


def text_forward(s: int, c: int = C, d: int = D) -> int:
    """Twelve blocks over a prefix of P tokens and c names of s tokens; the last one is read at one token of each."""
    attention = 4 * P**2 * W + c * 4 * s * (P + s) * W
    block = 24 * (P + c * s) * W**2 + attention
    last = 6 * (P + c * s + c) * W**2 + c * 4 * (P + s) * W + 18 * c * W**2
    return 11 * block + last + 2 * c * W * d


def text_backward(s: int, c: int = C, d: int = D) -> int:
    """The same without weights' gradients, five products of attention instead of two, and none of names in block 1."""
    attention = 11 * (4 * P**2 * W + c * 4 * s * (P + s) * W) + c * 4 * (P + s) * W
    return text_forward(s, c, d) + attention * 3 // 2 - 6 * c * s * W**2


def test_promptfl_on_cifar_by_hand() -> None:
    raw = {
        "backbone": "clip:ViT-B-16",
        "weights": "random",
        "seeds": [0],
        "methods": ["promptfl"],
        "protocol": {"rounds": 4, "epochs": 5, "batch_size": 32, "participation": 0.1, "last": 2, "eval_every": 10},
        "settings": [{"table": "T", "dataset": "cifar100", "partition": "disjoint:clients=20,shots=16"}],
    }
    (found,) = plan_suite(parse_suite("x", raw), RunEnvironment(out=Path("nowhere")), flops=1.0).cells.values()
    # A round: 2 clients with 5 classes of 16 images, 80 each; 3 steps of 32 in each of 5 epochs. All 20 are evaluated
    # in rounds 3 and 4 on 500 images each, with one pass of texts.
    images, evaluated = 4 * 2 * 5 * 80, 2 * 20 * 500
    assert {k: v for k, v in found.tally.images.items() if k != "features"} == {
        "train train": images,
        "evaluate": evaluated,
    }
    texts = {"train train": 4 * 2 * 5 * 3, "evaluate": 2 * 20}
    assert found.tally.clients == texts
    method: Any = meta_method("promptfl", meta_backbone("clip:ViT-B-16"), published("cifar100").class_names)
    s = method.prompts.ids.shape[1] - P
    project, cosines = 2 * VIT * D, 2 * C * D
    features = found.tally.images["features"]
    assert found.flops == (
        texts["train train"] * (text_forward(s) + text_backward(s))
        + texts["evaluate"] * text_forward(s)
        + images * (project + 2 * cosines)  # forward, and the gradient of the class features
        + evaluated * (project + cosines)
        + features * vit_forward()
    )
    assert found.bytes_sent == 4 * 2 * 2 * 4 * 8_192


def test_pfedmoap_on_cifar_by_hand() -> None:
    """A cell like those of `paper-clip-cifar`: the experts' texts once per visit, the gate in every step."""
    raw = {
        **{"backbone": "clip:ViT-B-16", "weights": "random", "seeds": [0], "methods": ["pfedmoap"]},
        "protocol": {"rounds": 2, "epochs": 5, "batch_size": 32, "last": 1, "eval_every": 10},
        "settings": [{"table": "T", "dataset": "cifar100", "partition": "disjoint:clients=20,shots=16"}],
    }
    (found,) = plan_suite(parse_suite("x", raw), RunEnvironment(out=Path("nowhere")), flops=1.0).cells.values()
    visits, steps, experts = 2 * 20, 2 * 20 * 5 * 3, 9
    images, evaluated = 2 * 20 * 5 * 80, 20 * 500
    assert found.tally.clients == {"begin": visits, "train train": steps, "evaluate": 20}
    assert found.images == images + evaluated + found.tally.images["features"]  # experts pass no image
    method: Any = meta_method("pfedmoap", meta_backbone("clip:ViT-B-16"), published("cifar100").class_names, 20)
    s = method.prompts.ids.shape[1] - P
    gate, mixed = 128, 1 + experts  # coordinates; the own context and the experts
    project, cosines = 2 * VIT * D, 2 * C * D
    # Of each image: its query; for every class scores and a mean over the experts, the output map, and a cosine.
    of_image = 2 * gate**2 + C * (2 * 2 * mixed * gate + 2 * gate**2 + 2 * gate)
    of_classes = 2 * 2 * C * mixed * gate**2  # keys and values
    # Backward: twice all that, but images have no gradient, nor have experts; the own context's class features have.
    backward = 2 * of_image - 2 * gate**2 - 2 * C * gate
    into_context = 2 * of_classes
    assert found.flops == (
        (visits * experts + steps + 20 * mixed) * text_forward(s)
        + steps * text_backward(s)
        + steps * (of_classes + into_context)
        + 20 * of_classes
        + images * (project + 2 * cosines + of_image + backward)
        + evaluated * (project + cosines + of_image)
        + found.tally.images["features"] * vit_forward()
    )
    assert found.bytes_sent == 4 * 8_192 * (visits * 2 + 20 * experts)  # of two visits, the first downloads no expert


def test_a_cell_of_paper_clip_cifar_by_hand() -> None:
    """Prompt+FedProx on CIFAR-10 with RN50: 120 rounds of 10 clients, five epochs in batches of 16."""
    whole = load_suite("paper-clip-cifar", weights="random")
    suite = replace(whole.only(["prompt-fedprox"]), seeds=(0,), settings=whole.only(["prompt-fedprox"]).settings[:1])
    (found,) = plan_suite(suite, RunEnvironment(out=Path("nowhere")), flops=1.0).cells.values()
    dataset, protocol = published("cifar10"), found.cell.protocol
    sizes = [len(rows) for rows in make_partition(parse_partition(found.cell.partition), dataset, 0).train]
    cohorts = [[sizes[client] for client in select(protocol, 0, range(100), number)] for number in range(1, 121)]
    images, evaluated = 5 * sum(map(sum, cohorts)), 10 * 10_000  # after rounds 20, 40, ..., 100 and 116 to 120
    assert found.tally.images == {"train train": images, "evaluate": evaluated, "features": 60_000}
    texts = 5 * sum(10 * math.ceil(max(cohort) / 16) for cohort in cohorts)
    assert found.tally.clients == {"train train": texts, "evaluate": 10 * 100}
    method: Any = meta_method("promptfl", meta_backbone("clip:RN50"), dataset.class_names)
    s, classes, dim = method.prompts.ids.shape[1] - P, 10, 1024
    forward, backward = text_forward(s, classes, dim), text_backward(s, classes, dim)
    cosines = 2 * classes * dim
    assert found.flops == (
        texts * (forward + backward)
        + 1000 * forward
        + images * 2 * cosines
        + evaluated * cosines
        + 60_000 * resnet_forward()
    )


def resnet_forward() -> int:
    """RN50 of CLIP at 224 pixels: three convolutions, four layers of bottlenecks that pool before they narrow, and an
    attention over 7 x 7 places and their mean, read at the mean."""
    products = 112**2 * 9 * (3 * 32 + 32 * 32 + 32 * 64)
    side, channels = 56, 64
    for layer, (blocks, planes) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for block in range(blocks):
            after = side // 2 if layer and not block else side
            products += side**2 * (channels * planes + 9 * planes**2) + after**2 * planes * 4 * planes
            products += 0 if block else after**2 * channels * 4 * planes  # the shortcut changes shape
            side, channels = after, 4 * planes
    places, width = side**2 + 1, channels
    return 2 * (products + (2 * places + 1) * width**2 + 2 * places * width + width * 1024)


def vit_forward() -> int:
    """Frozen image features: as for any ViT-B/16, class token only in the last block."""
    n = 197
    blocks = 11 * (24 * n * VIT**2 + 4 * n**2 * VIT) + 24 * VIT**2 + 4 * 12 * n * VIT
    return 2 * 196 * VIT * (3 * 16 * 16) + blocks


def test_the_stack_of_clients_is_chosen_by_what_a_step_keeps() -> None:
    method: Any = meta_method("promptfl", meta_backbone("clip:ViT-B-16"), published("cifar100").class_names)
    kept = cost(method, 1, 16, ()).client_bytes
    assert text_bytes(method) == kept > 0


# -- small runs, watched ----------------------------------------------------------------------------------------------

MICRO = BackboneSpec("micro-clip", "random", 16)
DEALT = "dirichlet:alpha=1,clients=4,min_size=2"
# The stack is given, because choosing it counts steps on `meta`, and the FLOPs of these would count, too.
SHORT = {"rounds": 3, "epochs": 1, "batch_size": 8, "participation": 0.25, "last": 1, "eval_every": 2, "stack": 4}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "never-sampled clients have nothing to fit": ("promptfl", DEALT, SHORT),
    "never-sampled clients fit their own context": ("coop", DEALT, SHORT),
    "everybody tunes a copy": ("promptfl-ft", DEALT, SHORT),
    "unseen clients fit their own tokens": ("prompt-fedper", f"{DEALT},unseen=half", SHORT),
    "unseen clients fit the mixture": ("prompt-fedamp", f"{DEALT},unseen=half", {**SHORT, "participation": 1.0}),
    "unseen clients train alone, then with experts": (
        "pfedmoap",
        f"{DEALT},unseen=half",
        {**SHORT, "epochs": 2, "participation": 1.0},
    ),
    "experts are computed once per visit": ("pfedmoap", DEALT, {**SHORT, "participation": 0.5}),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_computes_what_was_planned(case: str, toy_source: str, tmp_path: Path) -> None:
    method, partition, protocol = RUNS[case]
    params = {"length": 4}
    cell = make_cell(method, toy_source, partition, MICRO, 0, params, protocol)
    dataset = run_module._dataset("toy", None, 16)
    (planned,) = tally_cells([cell], {toy_source: dataset})
    with counted() as flops:
        run_cell(cell, RunEnvironment(out=tmp_path))
    shapes = meta_method(cell.method, meta_backbone("micro-clip", 16), classes_of(cell, dataset), 4, "none", **params)
    priced = cost(shapes, 1, 8, planned.images)
    assert flops.flops == pytest.approx(CellPlan(cell, planned, priced).flops, rel=0.02)


def test_a_zero_shot_control_passes_images_only(toy_source: str) -> None:
    cell = make_cell("zs-clip", toy_source, DEALT, MICRO, 0, {}, SHORT)
    (planned,) = tally_cells([cell], {toy_source: run_module._dataset("toy", None, 16)})
    assert set(planned.images) == {"evaluate", "features"}
