"""Properties of what a method answers: probabilities of classes, from images alone."""

import gc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from fedprompt.datasets import Dataset
from fedprompt.harness.conformance.lab import (
    ALL,
    Params,
    after_rounds,
    check_logits,
    double_precision,
    first_rows,
    require,
    same_bits,
    watch,
)
from fedprompt.harness.conformance.toy import CLASSES, toy_dataset
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.policy import head_owner
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.methods import Method, State

DOUBLE = 1e-9  # in float64, as for the other comparisons


def logits(method: type[Method], params: Params) -> None:
    """logits are finite floating-point numbers, one per class, before and after training"""
    federation, state = after_rounds(method, params, 0)
    require(federation.method.task.num_classes == CLASSES, "the toy has changed its number of classes")
    check_logits(federation, federation.theta(state, ALL)[1], ALL, "before round 1")
    federation.step(state)
    check_logits(federation, federation.theta(state, ALL)[1], ALL, "after round 1")


def averaged_draws(method: type[Method], params: Params) -> None:
    """predictions over several draws average probabilities, not logits: each draw adds its share to those before"""
    with double_precision():
        federation, state = after_rounds(method, params, 1)
        _, theta = federation.theta(state, ALL)
        batch = first_rows(federation, ALL, [8] * len(ALL), "evaluate", theta)
        with torch.no_grad():
            by_draws = hooks.predictions(federation.method, theta, batch)
        swept = sorted(draws for draws in by_draws if draws)
        require(swept == list(range(1, len(swept) + 1)), f"numbers of draws are {swept}, not 1, 2, 3, ...")
        for before, draws in pairwise(swept):
            older, newer = (by_draws[count].softmax(-1)[batch.mask] for count in (before, draws))
            share = draws * newer - before * older
            least = float(share.min())
            require(
                least >= -DOUBLE,
                f"if {draws} draws average probabilities, draw {draws} gives a class the probability {least:.3g}",
            )


def labels_withheld(method: type[Method], params: Params) -> None:
    """predictions are the same, to the bit, whatever the labels of the images to predict"""
    expected = _predictions(method, params, toy_dataset())
    gc.collect()  # no trace of the true labels is left for a method that would look for them in memory
    same_bits(expected, _predictions(method, params, _relabelled()), "after other labels of the test images")


def _relabelled() -> Dataset:
    """The toy with a wrong label on every test image."""
    dataset = toy_dataset()
    return replace(dataset, labels=np.where(dataset.is_test, (dataset.labels + 1) % CLASSES, dataset.labels))


def _predictions(method: type[Method], params: Params, dataset: Dataset) -> State:
    """Everything that is predicted after a round, before and after heads are fine-tuned, for all numbers of draws."""
    rules = {"sweep": True, "last": 3, "finetune_epochs": 0 if head_owner(method.paper_policy) == "local" else 1}
    federation, state = after_rounds(method, params, 1, dataset=dataset, **rules)
    answers: list[torch.Tensor] = []
    watch(federation.method, "predict", lambda _, result: answers.append(result))
    watch(federation.method, "predictions", lambda _, result: answers.extend(result.values()))
    evaluate(federation, state)
    require(bool(answers), "an evaluation asks for no prediction")
    return {f"prediction {number}": answer for number, answer in enumerate(answers)}
