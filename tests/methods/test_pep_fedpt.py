from dataclasses import replace

import pytest
import torch

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_backbone, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import Batch, State, Task
from fedprompt.methods.pep_fedpt import PEPFedPT, PEPParams, updated

ALL = (0, 1, 2, 3)
COUNTS = [[5, 5, 5, 5], [0, 8, 0, 0], [1, 3, 0, 4]]


def pep(**params: object) -> PEPFedPT:
    """Three clients: every class alike, one class alone, three of four."""
    task = Task(tuple("abcd"), torch.tensor(COUNTS))
    return PEPFedPT(PEPParams(**params), toy_backbone(), task)  # type: ignore[arg-type]


def mixing(prototypes: torch.Tensor, **params: object) -> torch.Tensor:
    query = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(0))
    return pep(**params).mixing(query, prototypes.expand(3, 4, 32), (0, 1, 2))


def some_prototypes() -> torch.Tensor:
    return torch.randn(4, 32, generator=torch.Generator().manual_seed(1))


def trained() -> tuple[PEPFedPT, State, Batch]:
    """The toy after a round, with a batch of five images per client."""
    federation = toy_federation(PEPFedPT, participation=1.0, epochs=1)
    state = federation.start()
    federation.step(state)
    _, theta = federation.theta(state, ALL)
    places = [torch.arange(5)] * 4
    batch = federation.data.batch(ALL, "train", places, [torch.Generator()] * 4)
    assert isinstance(federation.method, PEPFedPT)
    return federation.method, theta, replace(batch, start=theta)


# -- mixing -----------------------------------------------------------------------------------------------------------


def test_it_says_that_it_is_a_reconstruction() -> None:
    assert PEPFedPT.title == "PEP-FedPT (reconstruction)"


def test_weights_sum_to_one_and_absent_classes_get_none() -> None:
    weights = mixing(some_prototypes())
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 7))
    assert weights[2, :, 2].tolist() == [0.0] * 7
    assert weights[2, :, [0, 1, 3]].min() > 0


def test_uniform_prior_and_equal_prototypes_mix_uniformly() -> None:
    torch.testing.assert_close(mixing(some_prototypes()[:1].expand(4, 32))[0], torch.full((7, 4), 0.25))


def test_a_client_of_one_class_gets_its_token() -> None:
    assert mixing(some_prototypes())[1].tolist() == [[0.0, 1.0, 0.0, 0.0]] * 7


def test_hot_mixing_is_the_prior() -> None:
    weights = mixing(some_prototypes(), tau=1e9)
    torch.testing.assert_close(weights[2], torch.tensor([0.125, 0.375, 0.0, 0.5]).expand(7, 4), atol=1e-6, rtol=0)


def test_before_there_are_prototypes_weights_are_the_prior() -> None:
    torch.testing.assert_close(mixing(torch.zeros(4, 32))[2], torch.tensor([0.125, 0.375, 0.0, 0.5]).expand(7, 4))


def test_the_nearest_prototype_weighs_most() -> None:
    prototypes = 3 * torch.eye(4, 32)
    weights = pep().mixing(prototypes[None], prototypes[None], (0,))[0]
    assert weights[0].tolist() == pytest.approx([0.99986, 4.5e-5, 4.5e-5, 4.5e-5], rel=0.01)  # e^10 to 1
    assert weights.argmax(-1).tolist() == [0, 1, 2, 3]


def test_smoothing_gives_absent_classes_a_share() -> None:
    assert pep(smoothing=1.0).prior((2,)).tolist() == [pytest.approx([2 / 12, 4 / 12, 1 / 12, 5 / 12])]


def test_the_mixed_token_enters_at_its_block_and_stays() -> None:
    method, theta, batch = trained()
    seen = []
    edit = method.edit(theta, batch)

    def watch(block: int, tokens: torch.Tensor) -> torch.Tensor:
        edited = edit(block, tokens)
        seen.append(edited.shape[1])
        return edited

    method.backbone.cls(batch.images, watch)
    assert seen == [27, 28, 28]  # CLS, 16 patches, 10 shared tokens; before block 1 the mixed one


@pytest.mark.parametrize(("detach", "changes"), [(True, False), (False, True)])
def test_whether_weights_pass_a_gradient_to_the_shared_prompt(detach: bool, changes: bool) -> None:
    method, theta, batch = trained()
    leaf = theta["prompt"].clone().requires_grad_()
    other = PEPFedPT(replace(method.params, detach_weights=detach), method.backbone, method.task)
    query = other.queries({**theta, "prompt": leaf}, batch)
    weights = other.mixing(query, theta["prototypes"], batch.clients)
    assert weights.requires_grad is changes


@pytest.mark.parametrize("block", [3, 12])
def test_a_block_that_is_not_there(block: int) -> None:
    with pytest.raises(UserError, match=f"insert_block = {block} is not a block from 1 to 2"):
        pep(insert_block=block)


# -- prototypes -------------------------------------------------------------------------------------------------------


def test_prototypes_move_towards_the_means_of_classes_with_data() -> None:
    old = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    sums, counts = torch.tensor([[0.0, 8.0], [0.0, 0.0], [6.0, 3.0], [0.0, 0.0]]), torch.tensor([[4.0], [0], [3], [0]])
    new = updated(old, sums, counts, 0.5)
    assert new.tolist() == [[1.0, 1.0], [2.0, 0.0], [2.0, 1.0], [0.0, 0.0]]  # moved, kept, first mean, still none


def test_statistics_are_those_of_the_queries_of_the_same_pass() -> None:
    method, theta, batch = trained()
    closing = hooks.end_visit(method, theta, [batch, batch])
    rows: list[torch.Tensor] = []
    edit = method.edit(theta, batch)

    def watch(block: int, tokens: torch.Tensor) -> torch.Tensor:
        if block == method.block:
            rows.append(tokens[:, 0])
        return edit(block, tokens)

    method.backbone.cls(batch.images, watch)
    queries = batch.pad(rows[0])
    for k in ALL:
        for c in range(4):
            mine = queries[k][batch.labels[k] == c]
            assert closing["counts"][k, c] == 2 * len(mine)
            torch.testing.assert_close(closing["sums"][k, c], 2 * mine.sum(0), atol=1e-5, rtol=1e-5)


def test_a_rounds_counts_are_the_clients_label_counts() -> None:
    federation = toy_federation(PEPFedPT)
    _, theta = federation.theta(federation.start(), ALL)
    counts = hooks.end_visit(federation.method, theta, federation.data.ordered(ALL, "train", 8))["counts"]
    assert torch.equal(counts.long(), federation.method.task.train_counts)


# -- the federation ---------------------------------------------------------------------------------------------------


def test_nothing_that_trains_stays_with_a_client() -> None:
    federation = toy_federation(PEPFedPT)
    state = federation.start()
    federation.step(state)
    assert all(personal == {} for personal in state.personal.values())
    assert federation.method.rates().keys() <= state.server.keys()
    assert "prototypes" not in federation.method.rates()


@pytest.mark.parametrize(("weighted", "expected"), [(False, [2.0, 2.0, 2.0]), (True, [2.5, 1.0, 2.0])])
def test_class_prompts_may_be_averaged_by_the_images_of_the_class(weighted: bool, expected: list[float]) -> None:
    method = pep(class_weighted_agg=weighted)
    server = method.init_server(torch.Generator().manual_seed(0))
    uploads = {k: torch.stack([v + 1, v + 3]) for k, v in server.items() if k != "prototypes"}
    uploads |= {"sums": torch.ones(2, 4, 32), "counts": torch.tensor([[1.0, 4, 0, 0], [3.0, 0, 0, 0]])}
    after = method.aggregate(server, uploads, torch.tensor([0.5, 0.5], dtype=torch.float64), (0, 1))
    moved = (after["classes"] - server["classes"])[:3, 0]  # by 1 and 3 images, by one client alone, by nobody
    torch.testing.assert_close(moved, torch.tensor(expected))
