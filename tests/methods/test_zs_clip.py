from dataclasses import replace

import numpy as np
import torch

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_clip, toy_dataset, toy_federation, toy_partition
from fedprompt.harness.federation.assembly import make_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.methods.zs_clip import ZsClip


def test_seeds_do_not_matter() -> None:
    first, second = (toy_federation(ZsClip, seed=seed, participation=1.0) for seed in (0, 7))
    first_state, second_state = first.start(), second.start()
    first.step(first_state)
    second.step(second_state)
    assert evaluate(first, first_state) == evaluate(second, second_state)


def test_scores_do_not_depend_on_the_batch_size() -> None:
    counts = []
    for batch_size in (1, 3, 64):
        federation = toy_federation(ZsClip, batch_size=batch_size)
        counts.append(evaluate(federation, federation.start()))
    assert counts[0] == counts[1] == counts[2]


def test_permuting_names_and_labels_together_changes_nothing() -> None:
    data, order = toy_dataset(), np.array([2, 0, 3, 1])  # new class i is old class order[i]
    names = tuple(data.class_names[i] for i in order)
    permuted = replace(data, labels=np.argsort(order)[data.labels], class_names=names)
    correct = []
    for dataset in (data, permuted):
        rules = Protocol(rounds=1, head="none")
        federation = make_federation(ZsClip, {}, toy_clip(), dataset, toy_partition(), rules)
        correct.append([record.correct for record in evaluate(federation, federation.start())])
    assert correct[0] == correct[1]
    assert sum(correct[0]) > 0


def test_the_scale_changes_no_prediction() -> None:
    predicted = []
    for scale in (100.0, 3.0):
        clip = toy_clip()
        clip.logit_scale = scale
        federation = toy_federation(ZsClip, backbone=clip)
        predicted.append(federation.method.predict({}, first_rows(federation, ALL, [4] * 4, "evaluate", {})).argmax(-1))
    assert torch.equal(predicted[0], predicted[1])


def test_nothing_travels_and_nothing_is_kept() -> None:
    federation = toy_federation(ZsClip, participation=1.0)
    state = federation.start()
    log = federation.step(state)
    assert (log.floats_down, log.floats_up, state.server, state.personal) == (0, 0, {}, {client: {} for client in ALL})


def test_a_template_of_the_users_own() -> None:
    scores = []
    for params in ({}, {"template": "the {} of a photo"}):
        federation = toy_federation(ZsClip, params)
        scores.append(federation.method.predict({}, first_rows(federation, ALL, [4] * 4, "evaluate", {})))
    assert not torch.equal(*scores)
