import pytest
import torch
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import Method
from fedprompt.methods._null_space import project, removed_directions
from fedprompt.methods.fedpr import FedPRDeep, FedPRShallow
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import FedVPTDeep

BOTH = pytest.mark.parametrize("method", [FedPRShallow, FedPRDeep])
PROJECTORS = pytest.mark.parametrize(
    ("projector", "remaining"),
    [("gram_full", 615), ("thin", 766), ("exact", 758)],
)
# At the toy's width 32 the official rule removes 6 directions: all of a prompt of 4 rows.
SHORT = {"length": 4, "lr": 0.1}


def prompt_of(*shape: int) -> Tensor:
    return 0.0625 * (2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1)


def matrix(removed: Tensor) -> Tensor:
    return torch.eye(removed.shape[-2], dtype=removed.dtype) - removed @ removed.mT


@PROJECTORS
def test_projector_is_symmetric_idempotent_and_of_the_right_trace(projector: str, remaining: int) -> None:
    q = matrix(removed_directions(prompt_of(10, 768), projector))
    torch.testing.assert_close(q, q.mT)
    torch.testing.assert_close(q @ q, q, atol=1e-5, rtol=0)
    assert float(q.trace()) == pytest.approx(remaining, abs=1e-2)


@pytest.mark.parametrize("projector", ["gram_full", "exact"])
def test_projected_steps_are_orthogonal_to_the_received_prompt(projector: str) -> None:
    prompt, step = prompt_of(10, 768), 0.1 * torch.randn(10, 768, generator=torch.Generator().manual_seed(1))
    projected = project(step, removed_directions(prompt, projector))
    assert (prompt @ projected.mT).abs().max() < 1e-6
    assert (prompt @ step.mT).abs().max() > 0.1


def test_thin_removes_the_two_longest_directions_of_ten() -> None:
    prompt = torch.diag(torch.tensor([9.0, 1, 8, 2, 3, 4, 5, 6, 7, 2.5]))
    wide = torch.nn.functional.pad(prompt, (0, 6))
    remaining = project(torch.ones(1, 16), removed_directions(wide, "thin"))
    assert remaining.round(decimals=5).tolist() == [[0.0, 1.0, 0.0] + [1.0] * 13]


@pytest.mark.parametrize("projector", ["gram_full", "thin", "exact"])
def test_projector_is_the_same_at_every_call_and_for_rounded_inputs(projector: str) -> None:
    prompt = prompt_of(10, 768)
    once, again = (matrix(removed_directions(prompt, projector)) for _ in range(2))
    assert torch.equal(once, again)
    rounded = prompt.double() * (1 + 6e-8)
    assert (matrix(removed_directions(rounded, projector)) - once).abs().max() < 1e-5


@pytest.mark.parametrize("projector", ["gram_full", "exact"])
def test_directions_of_a_deficient_prompt_do_not_come_from_rounding(projector: str) -> None:
    prompt = prompt_of(10, 768)
    prompt[5:] = prompt[:5]
    noisy = prompt.double() + 1e-9 * torch.randn(10, 768, generator=torch.Generator().manual_seed(1)).double()
    q, other = (matrix(removed_directions(p, projector).double()) for p in (prompt, noisy))
    assert (q - other).abs().max() < 1e-5
    assert float(q.trace()) == pytest.approx({"gram_full": 615, "exact": 763}[projector], abs=1e-2)


def test_every_slice_of_a_stack_has_its_own_directions() -> None:
    prompts = prompt_of(2, 3, 4, 32)
    removed = removed_directions(prompts)
    assert removed.shape == (2, 3, 32, 6)
    torch.testing.assert_close(matrix(removed[1, 2]), matrix(removed_directions(prompts[1, 2])), atol=1e-6, rtol=0)


def test_frobenius_normalisation_shortens_a_step_by_the_root_of_the_trace() -> None:
    removed = removed_directions(prompt_of(10, 768))
    step = prompt_of(10, 768)[:, torch.arange(767, -1, -1)]
    torch.testing.assert_close(project(step, removed, True) * 615**0.5, project(step, removed))


@BOTH
@pytest.mark.parametrize("projector", ["gram_full", "exact"])
def test_the_aggregated_update_is_orthogonal_and_norms_only_grow(method: type[Method], projector: str) -> None:
    federation = toy_federation(method, {**SHORT, "projector": projector})
    state = federation.start()
    federation.step(state, [0, 1])
    (name,) = state.server
    before = state.server[name]
    federation.step(state, [0, 1, 2])
    update = state.server[name] - before
    assert update.abs().max() > 1e-4
    assert (before @ update.mT).abs().max() < 1e-6
    lengths = (before.square().sum(-1), update.square().sum(-1), state.server[name].square().sum(-1))
    torch.testing.assert_close(lengths[0] + lengths[1], lengths[2], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("method", "plain"), [(FedPRShallow, FedVPT), (FedPRDeep, FedVPTDeep)])
def test_with_all_directions_kept_it_is_fedvpt_bit_for_bit(method: type[Method], plain: type[Method]) -> None:
    ends = []
    for cls, params in ((method, {"ratio": 1.0}), (plain, {})):
        federation = toy_federation(cls, params)
        state = federation.start()
        for _ in range(3):
            federation.step(state)
        ends.append({**state.server, **state.personal[2]})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


@BOTH
@pytest.mark.parametrize("first", [False, True])
def test_round_one_is_projected_on_demand_only(method: type[Method], first: bool) -> None:
    federation = toy_federation(method, {**SHORT, "project_first_round": first})
    state = federation.start()
    (name,) = state.server
    before = state.server[name]
    federation.step(state, [0])
    along = (before @ (state.server[name] - before).mT).abs().max()
    assert bool(along < 1e-6) is first


# -- which prompt a projector belongs to -------------------------------------------------------------------------------


@BOTH
def test_both_prompts_are_one_where_everybody_takes_part(method: type[Method]) -> None:
    ends = []
    for rule in ("received", "last_visit"):
        federation = toy_federation(method, {**SHORT, "projector_of": rule}, participation=1.0)
        state = federation.start()
        for _ in range(3):
            federation.step(state)
        ends.append(state.server)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@BOTH
def test_a_first_visit_is_unprojected_in_any_round_and_later_ones_follow_the_last(method: type[Method]) -> None:
    """Client 0 is there in rounds 1 and 3, client 1 in rounds 2 and 3."""
    federation = toy_federation(method, {**SHORT, "projector_of": "last_visit"}, weight_decay=0.0)
    state, prompts = federation.start(), []
    (name,) = (key for key in state.server if key not in ("visited", f"last {key}") and not key.startswith("last "))

    def step(*clients: int) -> Tensor:
        before = state.server[name]
        federation.step(state, clients)
        prompts.append(state.server[name])
        return state.server[name] - before

    def lost(moved: Tensor, prompt: Tensor) -> bool:
        return bool((prompt @ moved.mT).abs().max() < 1e-5)

    step(0)
    assert not lost(step(1), prompts[0])  # its first visit, in round 2
    assert torch.equal(state.server[f"last {name}"][0], prompts[0])
    again = step(0)
    assert lost(again, prompts[0])  # not along what it received in round 3, ...
    assert not lost(again, prompts[1])  # ... which client 1 had trained meanwhile
    assert state.server["visited"].tolist() == [True, True, False, False]


def test_a_remembered_prompt_is_sent_along_and_not_back() -> None:
    federation = toy_federation(FedPRShallow, {**SHORT, "projector_of": "last_visit"})
    state = federation.start()
    first, second = federation.step(state, (0,)), federation.step(state, (0,))
    assert (first.floats_down, first.floats_up) == (4 * 32, 4 * 32)
    assert (second.floats_down, second.floats_up) == (2 * 4 * 32, 4 * 32)


def test_the_head_is_not_projected() -> None:
    heads, prompts = [], []
    for method, params in ((FedPRShallow, {"project_first_round": True}), (FedVPT, {})):
        federation = toy_federation(method, params, epochs=1)
        state = federation.start()
        federation.step(state, [3])  # one batch: one step
        heads.append(state.personal[3]["head.weight"])
        prompts.append(state.server["prompt"])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(prompts[0], prompts[1])


def test_weight_decay_of_the_prompt_is_annihilated() -> None:
    prompt = prompt_of(10, 768)
    assert project(-0.1 * prompt, removed_directions(prompt)).abs().max() < 1e-7
