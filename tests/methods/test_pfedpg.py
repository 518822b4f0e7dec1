from collections.abc import Sequence

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.measuring.evaluation import adapt, evaluate_unseen
from fedprompt.methods import State
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.pfedpg import GENERATOR, LEARNED, PFedPG, clip_jointly, generate

UNIFORM = torch.tensor([0.5, 0.5], dtype=torch.float64)


def toy(**params: object) -> tuple[Federation, PFedPG, State]:
    federation = toy_federation(PFedPG, params)
    method = federation.method
    assert isinstance(method, PFedPG)
    return federation, method, federation.start().server


def next_server(federation: Federation, state: FederationState, delta: Tensor, clients: Sequence[int]) -> None:
    """A round of the server alone."""
    weights = torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)
    state.server, state.optimiser = federation.aggregate(state, {"delta": delta}, weights, clients)
    state.round += 1


def delta_of(seed: int = 0) -> Tensor:
    return torch.randn(2, 10, 32, generator=torch.Generator().manual_seed(seed))


def test_the_personal_part_of_a_prompt_is_one_vector_in_all_rows() -> None:
    _, method, server = toy()
    prompts = hooks.download(method, server, [0, 1])["prompt"]
    shift = prompts - server["base"]
    torch.testing.assert_close(shift, shift[:, :1].expand(2, 10, 32), atol=1e-7, rtol=0)
    assert (shift[0, 0] - shift[1, 0]).abs().max() > 1e-5  # clients differ before round 1


def test_equal_descriptors_give_equal_prompts() -> None:
    _, method, server = toy()
    server["descriptors"][3] = server["descriptors"][1]
    prompts = hooks.download(method, server, [1, 3])["prompt"]
    assert torch.equal(prompts[0], prompts[1])


def test_generated_prompt_by_hand() -> None:
    one, zero = torch.eye(2), torch.zeros(2)
    generator = {"base": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "shift": zero, "query": one, "key": one}
    generator |= {"value": one, "out": 10 * one}
    even = torch.tensor([[0.0, 0.0]])  # attends to both rows alike: their mean is (0.5, 1)
    assert generate(generator, even).tolist() == [[[6.0, 10.0], [5.0, 12.0]]]
    first = torch.tensor([[200.0, 0.0]])  # attends to the first row alone
    assert generate(generator, first).tolist() == [[[11.0, 0.0], [10.0, 2.0]]]


def test_stacked_copies_of_the_generator_give_the_same_prompts() -> None:
    server = toy()[2]
    stacked = {name: server[name].expand(2, *server[name].shape) for name in GENERATOR}
    for heads in (1, 4):
        alike = generate(stacked, server["descriptors"][:2], heads)
        torch.testing.assert_close(alike, generate(server, server["descriptors"][:2], heads), atol=1e-6, rtol=0)


def test_clients_start_from_the_prompt_of_fedvpt() -> None:
    assert torch.equal(toy()[2]["base"], toy_federation(FedVPT).start().server["prompt"])


def test_the_upload_points_back_to_the_start() -> None:
    _, method, _ = toy()
    sent = method.upload({"prompt": torch.full((1, 1, 1), 3.0)}, {"prompt": torch.full((1, 1, 1), 5.0)})
    assert sent["delta"].item() == 2.0


def test_no_delta_no_gradient() -> None:
    _, method, server = toy()
    grads = method.server_gradients(server, {"delta": torch.zeros(2, 10, 32)}, UNIFORM, [0, 2])
    assert grads.keys() == set(LEARNED)
    assert all(not grad.any() for grad in grads.values())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rounds_on_a_quadratic_come_nearer_to_the_targets(optimizer: str) -> None:
    federation, method, _ = toy(gen_optimizer=optimizer, gen_lr=0.01)
    state, target = federation.start(), delta_of()

    def away() -> Tensor:
        return method.download(state.server, [0, 2])["prompt"] - target

    before = away().norm()
    for _ in range(10):  # a client that goes a tenth of the way to its target sends a tenth of the way back
        next_server(federation, state, 0.1 * away(), [0, 2])
    assert away().norm() < before - 0.01


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_descriptors_of_absent_clients_stay(optimizer: str) -> None:
    federation = toy_federation(PFedPG, {"gen_optimizer": optimizer})
    state = federation.start()
    federation.step(state, [0, 1, 2])  # gives them momentum
    before = state.server["descriptors"].clone()
    federation.step(state, [0, 2])
    assert (state.server["descriptors"] != before).any(1).tolist() == [True, False, True, False]
    assert state.server["visits"].tolist() == [2, 1, 2, 0]


def test_first_adam_step_has_the_length_of_the_learning_rate() -> None:
    federation, _, _ = toy(gen_optimizer="adam", gen_lr=0.01)
    state = federation.start()
    next_server(federation, state, delta_of(), [0, 2])
    before = state.server["descriptors"][1]
    next_server(federation, state, delta_of(1), [1, 2])
    moved = state.server["descriptors"][1] - before  # the second round, but client 1's first
    torch.testing.assert_close(moved.abs().median(), torch.tensor(0.01), atol=1e-4, rtol=0)


def test_what_the_server_learns_follows_the_schedule() -> None:
    """In the second of two rounds, cosine halves the step."""
    moved = {}
    for schedule in ("constant", "cosine"):
        federation = toy_federation(PFedPG, {"gen_lr": 0.01}, rounds=2, schedule=schedule)
        state = federation.start()
        state.round = 1
        before = state.server["base"]
        next_server(federation, state, delta_of(), [0, 2])
        moved[schedule] = state.server["base"] - before
    torch.testing.assert_close(moved["cosine"], moved["constant"] / 2, atol=1e-8, rtol=1e-4)
    assert moved["constant"].any()


def test_gradient_is_the_vector_jacobian_product() -> None:
    _, method, server = toy(heads=2)
    delta = delta_of()
    grads = method.server_gradients(server, {"delta": delta}, UNIFORM, [0, 2])
    for name in LEARNED:

        def prompts(value: Tensor, name: str = name) -> Tensor:
            changed = {**server, name: value}
            return generate(changed, changed["descriptors"][[0, 2]], heads=2)

        jacobian = torch.func.jacrev(prompts)(server[name])
        expected = torch.tensordot(0.5 * delta, jacobian, dims=3)
        torch.testing.assert_close(grads[name], expected, atol=1e-5, rtol=1e-4)


def test_weights_of_the_cohort() -> None:
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    delta = torch.stack([torch.ones(10, 32), torch.zeros(10, 32)])
    for rule, row in (("uniform", 0.5 * 10), ("protocol", 0.25 * 10), ("sum", 10.0)):
        _, method, server = toy(gen_weights=rule, clip=1e9)
        shift = method.server_gradients(server, {"delta": delta}, weights, [0, 2])["shift"]
        torch.testing.assert_close(shift, torch.full((32,), row))


def test_gradients_are_clipped_together() -> None:
    long = clip_jointly([torch.tensor([30.0]), torch.tensor([40.0])], 5.0)
    assert [float(grad) for grad in long] == [pytest.approx(3.0), pytest.approx(4.0)]
    assert [float(grad) for grad in clip_jointly([torch.tensor([3.0])], 5.0)] == [3.0]


def test_only_the_prompt_travels() -> None:
    federation, method, _ = toy()
    log = federation.step(federation.start(), [1])
    assert (log.floats_down, log.floats_up) == (320, 320) == floats_sent(method)


def test_a_global_head_is_averaged_beside_the_generator() -> None:
    federation = toy_federation(PFedPG, head="global")
    state = federation.start()
    head = state.server["head.weight"].clone()
    log = federation.step(state, [0, 1])
    assert not torch.equal(state.server["head.weight"], head)
    assert log.floats_up == 2 * (320 + 4 * 33)


def test_head_has_a_rate_of_its_own_where_given() -> None:
    assert toy(lr=0.25)[1].rates() == {"prompt": 0.25, "head.weight": 0.25, "head.bias": 0.25}
    assert toy(lr=0.25, head_lr=0.01)[1].rates() == {"prompt": 0.25, "head.weight": 0.01, "head.bias": 0.01}


def test_unseen_clients_begin_with_the_mean_descriptor_of_those_who_took_part() -> None:
    federation = toy_federation(PFedPG)
    state = federation.start()
    federation.step(state, [0, 2])
    sent = hooks.unseen_download(federation.method, state.server, [3, 1])
    mean = (state.server["descriptors"][0] + state.server["descriptors"][2]) / 2
    torch.testing.assert_close(sent["descriptor"], mean.expand(2, 32))
    assert "prompt" not in sent


def test_an_unseen_client_trains_its_descriptor_through_the_frozen_generator_and_then_its_head() -> None:
    federation = toy_federation(PFedPG)
    state = federation.start()
    federation.step(state, [0, 2])
    start = federation.theta(state, [1, 3], unseen=True)[1]
    adapted = adapt(federation, state, [1, 3], epochs=1, unseen=True)
    moved = {name for name in start if not torch.equal(start[name], adapted[name])}
    assert moved == {"descriptor", "head.weight", "head.bias"}
    assert not torch.equal(adapted["descriptor"][0], adapted["descriptor"][1])
    as_it_is = adapt(federation, state, [1, 3], epochs=0, unseen=True)
    assert torch.equal(as_it_is["descriptor"], adapted["descriptor"])
    assert torch.equal(as_it_is["head.weight"], start["head.weight"])
    assert [record.unseen for record in evaluate_unseen(federation, state, [1, 3])] == [True, True]


def test_a_member_never_sampled_keeps_its_generated_prompt() -> None:
    federation = toy_federation(PFedPG)
    state = federation.start()
    federation.step(state, [0, 2])
    adapted = adapt(federation, state, [3], epochs=1)
    assert torch.equal(adapted["prompt"], hooks.download(federation.method, state.server, [3])["prompt"])
    assert adapted.keys() == {"prompt", "head.weight", "head.bias"}


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="heads = 5 does not divide the width 32"):
        toy(heads=5)


def test_an_exchange_moves_the_descriptor_as_a_round_would() -> None:
    federation, method, _ = toy(unseen_mode="server_loop")
    state = federation.start()
    server = state.server
    server["visits"][0] = 1  # so that an unseen client begins with the descriptor of client 0
    theta, delta = method.unseen_download(server, [3]), delta_of()[:1]
    torch.testing.assert_close(theta["prompt"], method.download(server, [0])["prompt"])
    answer = method.end_stage(method.unseen_stages(1)[0], {**theta, "prompt": theta["prompt"] - delta})
    next_server(federation, state, delta, [0])
    torch.testing.assert_close(answer["descriptor"][0], state.server["descriptors"][0])
    assert not torch.equal(state.server["descriptors"][0], server["descriptors"][0])


def test_an_unseen_client_of_the_server_loop_ends_with_the_prompt_of_its_descriptor() -> None:
    federation, method, _ = toy(unseen_mode="server_loop")
    state = federation.start()
    federation.step(state, [0, 2])
    start = federation.theta(state, [1, 3], unseen=True)[1]
    adapted = adapt(federation, state, [1, 3], epochs=2, unseen=True)
    moved = {name for name in start if not torch.equal(start[name], adapted[name])}
    assert moved == {"descriptor", "prompt", "head.weight", "head.bias"}
    torch.testing.assert_close(adapted["prompt"], generate(adapted, adapted["descriptor"]))
    assert [stage.epochs for stage in hooks.unseen_stages(method, 3)] == [1, 1, 1]
