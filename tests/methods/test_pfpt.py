import pytest
import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.methods import State
from fedprompt.methods._prompt_matching import (
    Matching,
    assign,
    log_density,
    match_by_counts,
    match_by_networks,
    means_of_matches,
)
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.pfpt import PFPT

SOLVERS = ["networks", "counts"]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uploads(clients: int = 4, rows: int = 5, noise: float = 0.0, shuffled: bool = True) -> Tensor:
    """The same prompts at all clients, in other orders, with noise."""
    draws = rng()
    true = torch.randn(rows, 32, generator=draws, dtype=torch.float64) / 3
    orders = [torch.randperm(rows, generator=draws) if shuffled else torch.arange(rows) for _ in range(clients)]
    return torch.stack([true[order] for order in orders]) + noise * torch.randn(
        clients, rows, 32, generator=draws, dtype=torch.float64
    )


def match(solver: str, prompts: Tensor, seed: int = 0) -> Matching:
    if solver == "counts":
        return match_by_counts(prompts, rng(seed), 50, 0.3)
    return match_by_networks(prompts, rng(seed), 50, "odds", drift=False)


def served(prompts: Tensor, round_: int = 0, **params: object) -> State:
    method = toy_start(PFPT, length=prompts.shape[1], **params)[1]
    counter = torch.tensor(round_)
    server = {"prompt": torch.zeros(prompts.shape[1:]), "key": torch.tensor(7), "round": counter, "groups": counter}
    weights = torch.full((len(prompts),), 1 / len(prompts), dtype=torch.float64)
    return method.aggregate(server, {"prompt": prompts.float()}, weights, range(len(prompts)))


def as_set(prompt: Tensor) -> Tensor:
    return prompt[prompt[:, 0].argsort()]


@pytest.mark.parametrize("solver", SOLVERS)
def test_clients_that_agree_up_to_the_order_get_their_prompts_back(solver: str) -> None:
    result = served(uploads(), solver=solver)
    assert int(result["groups"]) == 5
    torch.testing.assert_close(as_set(result["prompt"]), as_set(uploads()[0].float()), atol=1e-6, rtol=0)


def test_averaging_slot_by_slot_would_mix_them_up() -> None:
    mean = uploads().mean(0)
    assert torch.cdist(mean, uploads()[0]).min() > 0.5


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_single_client_gets_what_it_sent(solver: str) -> None:
    alone = uploads(clients=1)
    assert torch.equal(served(alone, solver=solver)["prompt"], alone[0].float())


def test_the_order_of_a_clients_slots_does_not_matter() -> None:
    noisy = uploads(noise=0.02)
    turned = noisy.clone()
    turned[2] = noisy[2].flip(0)
    first, second = (as_set(served(prompts, solver="counts")["prompt"]) for prompts in (noisy, turned))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
def test_matchings_are_one_to_one_within_a_client(solver: str, noise: float) -> None:
    matching = match(solver, uploads(noise=noise))
    assert all(len(set(choices)) == 5 for choices in matching.choices.tolist())
    assert 5 <= len(matching.choices.unique()) <= 20


def test_without_noise_in_the_way_counts_average_what_belongs_together() -> None:
    noisy = uploads(clients=16, noise=0.02, shuffled=False)
    torch.testing.assert_close(served(noisy, solver="counts")["prompt"], noisy.mean(0).float(), atol=1e-6, rtol=0)


def test_gradients_of_the_networks_draw_candidates_away_from_their_prompts() -> None:
    """As the public code has it; ours stops them."""
    prompts, distances = uploads() / 12, {}  # rows of norm 0.15
    for drift in (True, False):
        matching = match_by_networks(prompts, rng(), 50, "odds", drift)
        matched = matching.candidates[matching.choices.unique()]
        distances[drift] = float(torch.cdist(matched, prompts[0]).min(1).values.mean())
    assert distances[True] > 0.1
    assert distances[False] < 0.02


def test_the_prompts_that_most_clients_agree_on_stay() -> None:
    matching = Matching(torch.tensor([[0, 1], [1, 2], [1, 2]]), torch.zeros(6), torch.zeros(6, 32).double())
    prompts = torch.arange(6.0, dtype=torch.float64).view(3, 2, 1).expand(3, 2, 32)
    merged = toy_start(PFPT, length=2)[1].merged(prompts, matching)
    assert merged[:, 0].tolist() == [(1 + 2 + 4) / 3, (3 + 5) / 2]


def test_densities_are_those_of_a_diagonal_normal() -> None:
    prompts, means = torch.randn(3, 4, generator=rng()).double(), torch.randn(5, 4, generator=rng(1)).double()
    spreads = 0.1 + torch.rand(5, 4, generator=rng(2)).double()
    constant = 2 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    expected = torch.distributions.Normal(means, spreads).log_prob(prompts[:, None]).sum(-1) + constant
    torch.testing.assert_close(log_density(prompts, means, spreads), expected)


def test_the_assignment_has_the_greatest_total() -> None:
    assert assign(torch.tensor([[3.0, 2.0, 0.0], [2.9, 0.0, 0.0]])).tolist() == [1, 0]


def test_candidates_without_a_match_stay() -> None:
    means, held = means_of_matches(torch.ones(1, 2, 3), torch.tensor([[0, 2]]), torch.zeros(3, 3))
    assert (means[:, 0].tolist(), held.tolist()) == ([1, 0, 1], [1, 0, 1])


def test_a_round_has_its_own_draw_and_always_the_same() -> None:
    noisy = uploads(noise=0.3)
    first, again, later = (served(noisy, round_, drift=True) for round_ in (0, 0, 1))
    assert torch.equal(first["prompt"], again["prompt"])
    assert not torch.equal(first["prompt"], later["prompt"])
    assert (int(first["round"]), int(later["round"])) == (1, 2)


def test_no_test_image_reaches_the_server() -> None:
    """Public code counts the rows that test images use, and aggregates those."""
    states = []
    for look in (False, True):
        federation = toy_federation(PFPT)
        state = federation.start()
        for _ in range(2):
            federation.step(state)
            if look:
                evaluate(federation, state)
        states.append(state.server)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_the_client_is_that_of_fedvpt_and_the_head_a_weighted_mean() -> None:
    heads = []
    for method in (PFPT, FedVPT):
        federation = toy_federation(method, head="global", participation=1.0)
        state = federation.start()
        log = federation.step(state)
        heads.append((log.loss, state.server["head.weight"]))
    assert heads[0][0] == heads[1][0]
    assert torch.equal(heads[0][1], heads[1][1])


def test_only_the_prompt_travels() -> None:
    federation, method, _, _ = toy_start(PFPT)
    assert hooks.download(method, federation.start().server, ALL).keys() == {"prompt", "head.weight", "head.bias"}
    local = toy_federation(PFPT, {"length": 3}, head="local").method
    assert floats_sent(local) == (3 * 32, 3 * 32)
