import torch

from fedprompt.harness.conformance.lab import ALL, cloned, first_rows, same_bits
from fedprompt.harness.conformance.toy import TRAIN_SIZES, toy_clip, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.training import train
from fedprompt.harness.measuring.evaluation import adapt, evaluate
from fedprompt.methods.promptfl import PromptFL


def test_equal_uploads_aggregate_to_themselves() -> None:
    method = toy_federation(PromptFL).method
    upload = torch.randn(16, 16)
    weights = torch.tensor([0.1] * 10, dtype=torch.float64)
    result = method.aggregate(
        {"context": torch.zeros(16, 16)}, {"context": upload.expand(10, -1, -1)}, weights, range(10)
    )
    assert torch.equal(result["context"], upload)


def test_weights_follow_the_sizes_of_the_clients() -> None:
    federation = toy_federation(PromptFL, participation=1.0)
    state = federation.start()
    _, theta = federation.theta(state, ALL)
    trained, _ = train(
        federation.method, theta, hooks.stages(federation.method, 2), federation.data, ALL, federation.protocol, (0, 1)
    )
    federation.step(state)
    shares = torch.tensor(TRAIN_SIZES, dtype=torch.float64) / sum(TRAIN_SIZES)
    expected = torch.einsum("k,kmd->md", shares, trained["context"].double()).float()
    torch.testing.assert_close(state.server["context"], expected, atol=1e-7, rtol=0)


def test_permuting_participants_changes_nothing() -> None:
    method = toy_federation(PromptFL).method
    uploads, weights = torch.randn(3, 16, 16), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    order = [2, 0, 1]
    straight = method.aggregate({}, {"context": uploads}, weights, [0, 1, 2])
    permuted = method.aggregate({}, {"context": uploads[order]}, weights[order], order)
    torch.testing.assert_close(straight["context"], permuted["context"], atol=1e-7, rtol=0)


def test_uploads_are_copies() -> None:
    """Of one client after the other: references to a model that all of them load would all be the last one's."""
    federation = toy_federation(PromptFL, participation=1.0, stack=1)
    state = federation.start()
    kept = []
    aggregate = federation.method.aggregate

    def keep(server, uploads, weights, clients):  # type: ignore[no-untyped-def]
        kept.append((uploads, cloned(uploads)))
        return aggregate(server, uploads, weights, clients)

    federation.method.aggregate = keep  # type: ignore[method-assign]
    federation.step(state)
    federation.step(state)
    uploads, copies = kept[0]
    same_bits(copies, uploads, "the uploads of round 1 after round 2")
    assert len({tuple(row.flatten().tolist()) for row in uploads["context"]}) == len(ALL)


def test_one_client_alone_is_local_training_with_fresh_optimisers() -> None:
    federation = toy_federation(PromptFL, epochs=2)
    state = federation.start()
    context = state.server["context"]
    for round_ in (1, 2):
        trained, _ = train(
            federation.method,
            {"context": context[None]},
            hooks.stages(federation.method, 2),
            federation.data,
            [2],
            federation.protocol,
            (0, round_),
        )
        context = trained["context"][0]
        federation.step(state, [2])
    assert torch.equal(state.server["context"], context)


def test_the_towers_are_bit_for_bit_what_they_were() -> None:
    clip = toy_clip()
    before = cloned(dict(clip.state_dict()))
    federation = toy_federation(PromptFL, backbone=clip, participation=1.0)
    state = federation.start()
    for _ in range(3):
        federation.step(state)
    same_bits(before, dict(clip.state_dict()), "the towers after three rounds")


def test_everybody_is_evaluated_with_the_new_prompt() -> None:
    federation = toy_federation(PromptFL)
    state = federation.start()
    federation.step(state, [0])
    held = federation.theta(state, ALL)[1]["context"]
    assert torch.equal(held, state.server["context"].expand_as(held))


# -- promptfl-ft: the reading after each client has tuned a copy -----------------------------------------------------


def readings(finetune_epochs: int) -> tuple[list[int], list[int]]:
    """Correct predictions of each client under both readings after two rounds."""
    federation = toy_federation(PromptFL, {"lr": 0.01}, participation=1.0, finetune_epochs=finetune_epochs)
    state = federation.start()
    for _ in range(2):
        federation.step(state)
    before = cloned(state.server)
    records = evaluate(federation, state, "train" if finetune_epochs else "test")
    same_bits(before, state.server, "the server's prompt after fine-tuning")
    by_policy = {policy: [r.correct for r in records if r.policy == policy] for policy in ("none", "none_then_ft")}
    return by_policy["none"], by_policy["none_then_ft"]


def test_without_epochs_there_is_nothing_but_promptfl() -> None:
    federation = toy_federation(PromptFL)
    state = federation.start()
    federation.step(state)
    held = federation.theta(state, ALL)[1]
    same_bits(held, adapt(federation, state, ALL, 0), "fine-tuned for no epochs")
    plain, tuned = readings(0)
    assert len(plain) == len(ALL)
    assert tuned == []


def test_fine_tuning_never_costs_training_accuracy_here() -> None:
    plain, tuned = readings(20)
    assert all(after >= before for before, after in zip(plain, tuned, strict=True))
    assert sum(tuned) > sum(plain)


def test_fine_tuning_sends_nothing() -> None:
    logs = []
    for epochs in (0, 5):
        federation = toy_federation(PromptFL, participation=1.0, finetune_epochs=epochs)
        state = federation.start()
        logs.append(federation.step(state))
        evaluate(federation, state)
    assert logs[0] == logs[1]


def test_scores_have_one_column_per_class() -> None:
    federation = toy_federation(PromptFL)
    theta = federation.theta(federation.start(), ALL)[1]
    scores = federation.method.predict(theta, first_rows(federation, ALL, [4] * 4, "evaluate", theta))
    assert scores.shape[-1] == federation.method.task.num_classes == 4
