import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance import PROPERTIES, Property, check_property
from fedprompt.harness.conformance.toy import toy_backbone, toy_dataset, toy_federation
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.harness.federation.schedule import draw_cohort
from fedprompt.harness.federation.training import train
from fedprompt.methods import Batch, Stage, State
from fedprompt.methods._group_keys import key_weights, orthogonal, popularity, similarity
from fedprompt.methods._sgpt_params import named_blocks
from fedprompt.methods.sgpt import SGPT

ALL = (0, 1, 2, 3)


def sgpt(**params: object) -> SGPT:
    method = toy_federation(SGPT, params).method
    assert isinstance(method, SGPT)
    return method


def choices(counts: list[int], features: list[list[float]], stage: str = "group", **params: object) -> list[int]:
    """Groups that one client's images choose if the keys are the first three axes."""
    given = torch.tensor([features])
    start = {"keys": torch.eye(3)[None], "counts": torch.tensor([counts])}
    batch = Batch(
        (0,), torch.zeros(given.shape[:2], dtype=torch.int64), (len(features),), None, given, [], stage, start
    )
    groups: list[int] = sgpt(groups=3, **params).choice(start, batch)[0].argmax(-1).tolist()
    return groups


def batch_and_theta(stage: str, **params: object) -> tuple[Batch, State]:
    federation = toy_federation(SGPT, params)
    _, theta = federation.theta(federation.start(), ALL)
    places = [torch.arange(5)] * 4
    plain = federation.data.batch(ALL, "train", places, [torch.Generator()] * 4, stage)
    return replace(plain, start=theta), theta


def visit(stage: Stage) -> tuple[State, State]:
    federation = toy_federation(SGPT)
    _, theta = federation.theta(federation.start(), ALL)
    after, _ = train(federation.method, theta, [stage], federation.data, ALL, federation.protocol, (0, 1))
    return theta, after


# -- the choice -------------------------------------------------------------------------------------------------------


IMAGES = [[1.0, 0.5, 0.1], [0.1, 1.0, 0.5], [0.2, 0.3, 1.0]]


def test_before_the_first_count_training_and_evaluation_choose_alike() -> None:
    assert choices([0, 0, 0], IMAGES, "group") == choices([0, 0, 0], IMAGES, "evaluate") == [0, 1, 2]


def test_a_popular_group_is_avoided_in_training_only() -> None:
    assert choices([1_000_000, 10, 10], IMAGES, "group") == [1, 1, 2]
    assert choices([1_000_000, 10, 10], IMAGES, "evaluate") == [0, 1, 2]
    assert choices([1_000_000, 10, 10], IMAGES, "adapt") == [0, 1, 2]


def test_popularity_is_a_share_with_a_floor() -> None:
    factor = popularity(torch.tensor([[1, 3, 0], [0, 0, 0]]), torch.zeros(1))
    assert factor.tolist() == [pytest.approx([0.2505, 0.7505, 0.0005]), [1.0, 1.0, 1.0]]


def test_a_vote_gives_the_whole_batch_its_most_frequent_choice() -> None:
    images = [[0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [1.0, 0.0, 0.0]]
    assert choices([0, 0, 0], images, batch_vote=True) == [1, 1, 1]
    assert choices([0, 0, 0], images, "evaluate", batch_vote=True) == [1, 1, 0]


def test_queries_are_rectified() -> None:
    cosine = similarity(torch.tensor([[[3.0, 4.0, -100.0]]]), torch.eye(3)[None])
    assert cosine.flatten().tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_popularity_is_what_the_server_sent_or_also_what_the_visit_has_chosen() -> None:
    used = {}
    for live in (False, True):
        federation = toy_federation(SGPT, {"live_counts": live}, participation=1.0)
        state = federation.start()
        federation.step(state)
        used[live] = int((state.server["counts"] > 0).sum())
    assert used == {False: 1, True: 6}  # with the toy's features one key is the nearest of all


# -- prompts ----------------------------------------------------------------------------------------------------------


def lengths(method: SGPT, grouped: bool) -> list[int]:
    """Tokens entering each block."""
    seen = []
    group = torch.zeros(2, len(method.group_blocks), 32) if grouped else None
    edit = method.edit(torch.zeros(2, method.shared_tokens, 32), group)

    def watch(block: int, tokens: Tensor) -> Tensor:
        edited = edit(block, tokens)
        seen.append(edited.shape[1])
        return edited

    method.backbone.cls(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), watch)
    return seen


def test_tokens_are_only_ever_added() -> None:
    assert lengths(sgpt(), grouped=True) == [18, 19, 19]  # 17 + T, + a group's, which stay
    assert lengths(sgpt(), grouped=False) == [18, 18, 18]
    wide = sgpt(length=4, shared_blocks="0-1", group_blocks="2")
    assert lengths(wide, grouped=True) == [21, 22, 23]  # 17 + T + |A| - 1 + |B|


def test_pooling_takes_cls_alone_in_stage_shared() -> None:
    (batch, theta), method = batch_and_theta("shared"), sgpt()
    whole = method.backbone(batch.images, method.edit(batch.rows(theta["shared"])), rows=17)
    torch.testing.assert_close(batch.pack(method.features(theta, batch)), whole[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stage", ["group", "evaluate"])
def test_pooling_takes_the_mean_of_cls_and_the_group_tokens(stage: str) -> None:
    places = {"shared_blocks": "0", "group_blocks": "1-2"}
    (batch, theta), method = batch_and_theta(stage, **places), sgpt(**places)
    choices = method.choice(theta, batch).argmax(-1)
    group = torch.stack([theta["groups"][k, :, g] for k in ALL for g in choices[k][batch.mask[k]]])
    whole = method.backbone(batch.images, method.edit(batch.rows(theta["shared"]), group), rows=17)
    expected = (whole[:, 0] + whole[:, 1] + whole[:, 2]) / 3
    torch.testing.assert_close(batch.pack(method.features(theta, batch)), expected, atol=1e-5, rtol=1e-5)


def test_blocks_are_the_published_ones_at_depth_twelve_and_in_proportion_elsewhere() -> None:
    assert named_blocks("auto", range(5), 12, "a") == (0, 1, 2, 3, 4)
    assert named_blocks("0-2,5", range(5), 12, "a") == (0, 1, 2, 5)
    assert (sgpt().shared_blocks, sgpt().group_blocks) == ((0,), (1,))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"shared_blocks": "0-3"}, "shared_blocks = '0-3' does not name blocks 0 to 2"),
        ({"group_blocks": "x"}, "write 0-2, 0,2 or auto"),
        ({"group_blocks": "2-1"}, "group_blocks = '2-1'"),
        ({"shared_blocks": "1-2", "group_blocks": "0-1"}, "must be inserted last"),
        ({"groups": 33}, "only 32 keys can be orthogonal"),
        ({"query_blocks": 4}, "features after 4 blocks: backbone 'toy' has 3"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        toy_federation(SGPT, params)


def test_keys_begin_orthonormal_but_for_the_first_and_shared_prompts_at_zero() -> None:
    server, unit = (toy_federation(SGPT, {"unit_keys": unit}).start().server for unit in (False, True))
    torch.testing.assert_close(unit["keys"] @ unit["keys"].T, torch.eye(6), atol=1e-5, rtol=0)
    assert torch.equal(server["keys"][1:], unit["keys"][1:])
    length = server["keys"][0].norm()
    torch.testing.assert_close(server["keys"][0] / length, unit["keys"][0])
    assert float(length) == pytest.approx((2 * 32 / (6 + 32)) ** 0.5, rel=0.2)  # Xavier's rule; it is no unit vector
    assert abs(float(length) - 1) > 0.05
    assert not server["shared"].any()
    assert server["groups"].abs().max() == pytest.approx(math.sqrt(6 / (3 * 4**2 + 32)), rel=0.02)


def test_orthogonal_keeps_the_first_direction_as_gram_schmidt_does() -> None:
    keys = orthogonal(torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
    torch.testing.assert_close(keys, torch.tensor([[0.6, 0.8], [-0.8, 0.6]]))


def test_queries_come_from_the_cache_of_their_depth() -> None:
    images = torch.from_numpy(toy_dataset().images[:3])
    for blocks_, stop in ((0, None), (2, 2)):
        cached = toy_federation(SGPT, {"query_blocks": blocks_}).data._features
        assert cached is not None
        torch.testing.assert_close(cached[:3], toy_backbone().cls(images, stop=stop), atol=1e-5, rtol=1e-5)


# -- training ---------------------------------------------------------------------------------------------------------


def test_stage_shared_leaves_groups_and_keys_as_they_were() -> None:
    before, after = visit(sgpt().stages(1)[0])
    assert all(torch.equal(before[name], after[name]) for name in ("groups", "keys", "counts"))
    assert not torch.equal(before["shared"], after["shared"])


def test_stage_group_leaves_the_shared_prompts_as_they_were() -> None:
    before, after = visit(sgpt().stages(1)[1])
    assert torch.equal(before["shared"], after["shared"])
    assert not any(torch.equal(before[name], after[name]) for name in ("groups", "keys", "head.weight"))
    assert (after["counts"] - before["counts"]).sum(1).tolist() == [13, 8, 21, 5]  # every image, once an epoch


def test_only_chosen_groups_get_a_gradient() -> None:
    batch, theta = batch_and_theta("group")
    leaves = {name: theta[name].clone().requires_grad_() for name in ("groups", "keys")}
    groups, keys = torch.autograd.grad(sgpt().loss({**theta, **leaves}, batch).sum(), list(leaves.values()))
    used = (sgpt().choice(theta, batch) * batch.mask[..., None]).sum(1) > 0
    assert torch.equal(groups.abs().amax((1, 3)) > 0, used)
    assert torch.equal(keys.abs().amax(2) > 0, used)
    assert not used.all()


def test_the_loss_pulls_keys_towards_their_queries() -> None:
    batch, theta = batch_and_theta("group")
    nearest = batch.mean(similarity(batch.features, theta["keys"]).amax(-1))
    torch.testing.assert_close(sgpt().loss(theta, batch), sgpt(key_weight=0.0).loss(theta, batch) - nearest)


@pytest.mark.parametrize(("passes", "pulled"), [(2, [True, True, False, False]), (0, [True] * 4)])
def test_keys_are_pulled_in_the_first_passes_over_a_clients_images(passes: int, pulled: list[bool]) -> None:
    """Clients have 13, 8, 21 and 5 images; they have gone through 0, 15, 42 and 11 of them."""
    batch, theta = batch_and_theta("group")
    chosen = torch.tensor([[0], [15], [42], [11]]) * torch.eye(6, dtype=torch.int64)[0]
    theta = {**theta, "counts": batch.start["counts"] + chosen}
    method = sgpt(key_epochs=passes)
    assert method.pulls_keys(theta, batch).tolist() == pulled
    keys = theta["keys"].clone().requires_grad_()
    (grad,) = torch.autograd.grad(method.loss({**theta, "keys": keys}, batch).sum(), keys)
    assert grad.flatten(1).any(1).tolist() == pulled


def test_a_visit_pulls_keys_no_longer_than_asked() -> None:
    def keys_after(**params: object) -> Tensor:
        federation = toy_federation(SGPT, params, participation=1.0, epochs=3, weight_decay=0.0, momentum=0.0)
        state = federation.start()
        federation.step(state)
        return state.server["keys"]

    assert torch.equal(keys_after(), keys_after(key_epochs=3))
    assert not torch.equal(keys_after(), keys_after(key_epochs=2))


@pytest.mark.parametrize(("rule", "epochs"), [("E+E", [5, 5]), ("E/2+E/2", [2, 3])])
def test_epochs_of_the_stages(rule: str, epochs: list[int]) -> None:
    stages = sgpt(bcd_epochs=rule).stages(5)
    assert [stage.name for stage in stages] == ["shared", "group"]
    assert [stage.epochs for stage in stages] == epochs


# -- the published order of popularity --------------------------------------------------------------------------------


def after_round(order: tuple[int, ...] | None = None, **params: object) -> State:
    """The server's state after two rounds; with ``order`` the second one is a loop by hand over clients in that order,
    with one counter for all."""
    federation = toy_federation(SGPT, params, participation=1.0)
    state = federation.start()
    federation.step(state)
    if order is None:
        federation.step(state)
        return state.server
    method, uploads, counter = federation.method, {}, state.server["counts"]
    for client in order:
        handed = FederationState(1, {**state.server, "counts": counter}, state.personal)
        received, theta = federation.theta(handed, (client,))
        stages = method.stages(federation.protocol.epochs)
        trained, _ = train(method, theta, stages, federation.data, (client,), federation.protocol, (federation.seed, 2))
        uploads[client] = method.upload(trained, received)
        counter = counter + uploads[client]["counts"][0]
    stacked = {name: torch.cat([uploads[client][name] for client in ALL]) for name in uploads[0]}
    return method.aggregate(state.server, stacked, federation.weights(ALL), ALL)


def drawn(round_: int) -> tuple[int, ...]:
    federation = toy_federation(SGPT, participation=1.0)
    return draw_cohort(federation.protocol, federation.seed, federation.members, round_)


def test_sequential_counts_are_a_loop_over_clients_with_one_counter() -> None:
    by_hand, ours = after_round(drawn(2), counts="sequential"), after_round(counts="sequential")
    assert all(torch.equal(by_hand[name], ours[name]) for name in ours)


def test_with_sequential_counts_the_order_matters_and_without_it_does_not() -> None:
    order = drawn(2)
    published, reversed_ = (after_round(o, counts="sequential") for o in (order, order[::-1]))
    assert not torch.equal(published["counts"], reversed_["counts"])
    assert published["counts"].sum() == reversed_["counts"].sum()
    assert not torch.equal(after_round(counts="round")["counts"], published["counts"])


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_sequential_counts_are_the_same_bits_whatever_the_stack(stack: int) -> None:
    federation = toy_federation(SGPT, {"counts": "sequential"}, participation=1.0, stack=stack)
    state = federation.start()
    federation.step(state)
    federation.step(state)
    expected = after_round(counts="sequential")
    assert all(torch.equal(state.server[name], expected[name]) for name in expected)


def test_a_client_is_sent_what_the_one_before_it_handed_on() -> None:
    federation = toy_federation(SGPT, {"counts": "sequential"}, participation=1.0)
    assert federation.visit_groups(ALL, 1) == tuple((client,) for client in drawn(1))
    assert federation.visit_groups((3, 0), 1) == federation.visit_groups((0, 3), 1)  # whatever order they are given in
    assert sgpt(counts="sequential").hand_on({"counts": torch.ones(6)}, {"counts": torch.ones(6)})["counts"].sum() == 12


@pytest.mark.parametrize("property_", PROPERTIES, ids=lambda p: p.name)
def test_conformance_with_sequential_counts(property_: Property) -> None:
    result = check_property(property_, SGPT, {"counts": "sequential"})
    assert result.ok, result.reason


# -- the server -------------------------------------------------------------------------------------------------------


def test_key_weights_follow_the_counts_unless_they_are_few() -> None:
    weights = key_weights(torch.tensor([[30, 50, 0], [90, 0, 0], [0, 0, 0]]))
    torch.testing.assert_close(weights.sum(0), torch.ones(3, dtype=torch.float64))
    assert weights.T.tolist() == [
        pytest.approx([0.25, 0.75, 0]),
        pytest.approx([1 / 3] * 3),
        pytest.approx([1 / 3] * 3),
    ]


def uploads(server: State) -> State:
    """Two clients: one sends what it got plus 1, the other plus 3; the first group was chosen 25 and 75 times."""
    shifts = torch.tensor([1.0, 3.0])
    sent = {k: v + shifts.view(-1, *[1] * v.dim()) for k, v in server.items() if k != "counts"}
    return {**sent, "counts": torch.tensor([[25, 2, 0, 0, 0, 0], [75, 1, 0, 0, 0, 0]])}


def moved(params: dict[str, object]) -> tuple[State, dict[str, Tensor]]:
    federation = toy_federation(SGPT, params)
    server = federation.start().server
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    after = federation.method.aggregate(server, uploads(server), weights, (0, 1))
    return after, {name: after[name] - server[name] for name in server}


def test_aggregation() -> None:
    after, step = moved({"moment_k": 0.0})
    assert step["shared"].unique().tolist() == [2.0]  # the mean of 1 and 3
    torch.testing.assert_close(step["groups"], torch.full((1, 6, 32), 1.0))  # half of it is kept back
    torch.testing.assert_close(step["keys"][:3, 0], torch.tensor([2.5, 2.0, 2.0]))  # 1/4 and 3/4; equal weights
    assert after["counts"].tolist() == [100, 3, 0, 0, 0, 0]


def test_full_momentum_freezes() -> None:
    _, step = moved({"moment_p": 1.0, "moment_k": 1.0})
    assert not step["groups"].any()
    assert not step["keys"].any()


def test_counts_of_a_visit_go_up_and_their_sum_comes_down() -> None:
    federation = toy_federation(SGPT, participation=1.0, epochs=1)
    state = federation.start()
    for total in (47, 94):
        federation.step(state)
        assert state.server["counts"].sum() == total
