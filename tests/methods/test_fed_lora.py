import pytest
import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import State
from fedprompt.methods._low_rank import LowRank
from fedprompt.methods.fed_lora import FedIT, FFALora, FlexLora, LoraFair, best_rank, by_descent, closest
from fedprompt.methods.fedsa_lora import FedSALora

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SERVERS = [FedIT, FFALora, FlexLora, LoraFair]


def draws(clients: int = 3, rank: int = 8, width: int = 32) -> State:
    """Factors of clients that disagree."""
    rng = torch.Generator().manual_seed(0)
    return {
        "down": torch.randn(clients, 3, 2, rank, width, generator=rng) / 6,
        "up": torch.randn(clients, 3, 2, width, rank, generator=rng) / 60,
    }


def product(state: State) -> Tensor:
    return state["up"].double() @ state["down"].double()


def wanted(uploads: State, weights: Tensor = WEIGHTS) -> Tensor:
    """D: the mean of the updates."""
    return torch.tensordot(weights, product(uploads), dims=1)


def served(method: type[LowRank], uploads: State, weights: Tensor = WEIGHTS, **params: object) -> State:
    return toy_start(method, **params)[1].aggregate({}, uploads, weights, range(len(weights)))


@pytest.mark.parametrize("method", [FedIT, FlexLora, LoraFair])
def test_equal_uploads_keep_their_product(method: type[LowRank]) -> None:
    same = {name: stack[:1].expand_as(stack) for name, stack in draws().items()}
    torch.testing.assert_close(product(served(method, same)), product(same)[0], atol=1e-7, rtol=0)


def test_fedit_is_fedsa_lora_that_shares_both_factors() -> None:
    for name, mean in served(FedIT, draws()).items():
        assert torch.equal(mean, served(FedSALora, draws(), share="AB")[name])


def test_the_product_of_averaged_factors_is_not_the_averaged_product() -> None:
    assert (product(served(FedIT, draws())) - wanted(draws())).norm() > 0.3 * wanted(draws()).norm()


def test_flexlora_with_room_for_all_directions_gives_the_averaged_product() -> None:
    thin = {"down": draws(rank=8)["down"], "up": draws(rank=8)["up"].clone()}
    thin["up"][..., 3:] = 0  # two clients of rank 3 fit into rank 8
    two = {name: stack[:2] for name, stack in thin.items()}
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64)
    torch.testing.assert_close(product(served(FlexLora, two, weights)), wanted(two, weights), atol=1e-7, rtol=0)


def test_flexlora_is_the_best_approximation_of_its_rank() -> None:
    left, sizes, right = torch.linalg.svd(wanted(draws()))
    best = (left[..., :8] * sizes[..., None, :8]) @ right[..., :8, :]
    torch.testing.assert_close(product(served(FlexLora, draws())), best, atol=1e-7, rtol=0)


def test_what_flexlora_uploads_is_what_was_trained() -> None:
    _, method, theta, _ = toy_start(FlexLora)
    rng = torch.Generator().manual_seed(2)
    theta = {**theta, "up": torch.randn(theta["up"].shape, generator=rng)}
    sent = method.upload(theta, {"down": theta["down"], "up": theta["up"]})
    torch.testing.assert_close(product(sent), product(theta), atol=1e-5, rtol=0)
    rows = sent["down"] @ sent["down"].mT
    torch.testing.assert_close(rows, torch.eye(8).expand_as(rows), atol=1e-5, rtol=0)


@pytest.mark.parametrize("penalty", [0.0, 0.01, 1.0])
def test_the_residual_brings_the_product_nearer_to_the_averaged_one(penalty: float) -> None:
    corrected = product(served(LoraFair, draws(), penalty=penalty))
    assert (corrected - wanted(draws())).norm() < (product(served(FedIT, draws())) - wanted(draws())).norm()


def test_without_penalty_the_residual_is_the_least_squares_solution() -> None:
    mean = served(FedIT, draws())
    up = torch.linalg.lstsq(mean["down"].double().mT, wanted(draws()).mT).solution.mT
    torch.testing.assert_close(served(LoraFair, draws(), penalty=0.0)["up"], up.float(), atol=1e-6, rtol=0)


def test_a_great_penalty_leaves_the_mean() -> None:
    torch.testing.assert_close(
        served(LoraFair, draws(), penalty=1e6)["up"], served(FedIT, draws())["up"], atol=1e-6, rtol=0
    )


def test_the_closed_form_is_where_gradient_descent_ends() -> None:
    rng = torch.Generator().manual_seed(1)
    gap, down = torch.randn(1, 1, 6, 6, generator=rng).double(), torch.randn(1, 1, 2, 6, generator=rng).double()
    change = torch.zeros(1, 1, 6, 2, dtype=torch.float64)
    for _ in range(10_000):
        change -= 0.01 * (2 * (change @ down - gap) @ down.mT + 2 * 0.1 * change)
    torch.testing.assert_close(closest(gap @ down.mT, down, 0.1), change, atol=1e-12, rtol=0)


def test_descent_on_the_cosine_raises_it() -> None:
    mean = {name: tensor.double() for name, tensor in served(FedIT, draws()).items()}
    target = wanted(draws())
    change = by_descent(target, mean["down"], mean["up"], penalty=0.01, steps=200, size=0.1)

    def cosine(up: Tensor) -> Tensor:
        return torch.nn.functional.cosine_similarity((up @ mean["down"]).flatten(2), target.flatten(2), dim=2)

    assert (cosine(mean["up"] + change) > cosine(mean["up"])).all()


@pytest.mark.parametrize("measure", ["l2", "cosine"])
def test_there_is_nothing_to_correct_where_all_agree(measure: str) -> None:
    same = {name: stack[:1].expand_as(stack) for name, stack in draws().items()}
    fair = served(LoraFair, same, measure=measure, steps=10)
    torch.testing.assert_close(fair["up"], same["up"][0], atol=1e-8, rtol=0)


def test_ffa_lora_never_moves_its_first_factor_and_averages_exactly() -> None:
    federation = toy_federation(FFALora, {"lr": 0.5}, participation=1.0)
    state = federation.start()
    first = federation.personal(state, 0)["down"].clone()
    for _ in range(2):
        federation.step(state)
    assert all(torch.equal(state.personal[client]["down"], first) for client in ALL)
    uploads = {"down": first.expand(3, *first.shape), "up": draws()["up"]}
    mean = served(FFALora, {"up": uploads["up"]})
    torch.testing.assert_close(product({**mean, "down": first}), wanted(uploads), atol=1e-7, rtol=0)


@pytest.mark.parametrize("method", SERVERS)
def test_the_order_of_clients_does_not_matter_but_their_weights_do(method: type[LowRank]) -> None:
    names = toy_federation(method).start().server.keys() - {"head.weight", "head.bias"}
    uploads = {name: stack for name, stack in draws().items() if name in names}
    mean = served(method, uploads)
    turned = served(method, {name: stack.flip(0) for name, stack in uploads.items()}, WEIGHTS.flip(0))
    equal = served(method, uploads, torch.full((3,), 1 / 3, dtype=torch.float64))
    for name in names:
        torch.testing.assert_close(turned[name], mean[name], atol=1e-6, rtol=0)
    assert not torch.allclose(equal["up"], mean["up"], atol=1e-4)


@pytest.mark.parametrize(("method", "floats"), [(FedIT, 3072), (FFALora, 1536), (FlexLora, 3072), (LoraFair, 3072)])
def test_what_travels(method: type[LowRank], floats: int) -> None:
    assert floats_sent(toy_start(method)[1]) == (floats, floats) == (2 * 3 * 8 * 32 * (floats // 1536),) * 2


@pytest.mark.parametrize("method", SERVERS)
def test_before_training_the_tower_is_the_frozen_one(method: type[LowRank]) -> None:
    _, built, theta, batch = toy_start(method)
    frozen = batch.pad(built.backbone.cls(batch.images))
    torch.testing.assert_close(built.features(theta, batch), frozen, atol=1e-5, rtol=1e-5)


def test_untrained_uploads_give_finite_factors() -> None:
    uploads = {**draws(), "up": torch.zeros_like(draws()["up"])}
    down, up = best_rank(uploads["down"].double(), uploads["up"].double(), WEIGHTS)
    assert down.isfinite().all()
    assert not up.any()


@pytest.mark.parametrize("turned", [False, True])
def test_directions_that_nobody_used_do_not_depend_on_rounding(turned: bool) -> None:
    """Clients with few images upload fewer than r directions, and a decomposition leaves the others open."""
    uploads = {name: stack.double() for name, stack in draws().items()}
    uploads["up"] = uploads["up"] * (torch.arange(8) < 1)  # three directions of eight
    downs, ups = (uploads["up"].mT, uploads["down"].mT) if turned else (uploads["down"], uploads["up"])
    noise = 1e-15 * torch.randn(downs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    first, second = best_rank(downs, ups, WEIGHTS), best_rank(downs + noise, ups, WEIGHTS)
    torch.testing.assert_close(first, second, atol=1e-7, rtol=0)
    torch.testing.assert_close(first[1] @ first[0], wanted({"down": downs, "up": ups}), atol=1e-12, rtol=0)
