import re
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import torch
from support import broken_learners
from support.broken_methods import BROKEN
from support.unusual_methods import UNUSUAL

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance import PROPERTIES, check_method, check_property, toy
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.federation.schedule import Evaluation
from fedprompt.harness.measuring import evaluation
from fedprompt.harness.measuring.counts import Counts
from fedprompt.harness.measuring.evaluation import ClientScores
from fedprompt.methods import Batch, Method, State, StopGradients, load_plugin, registry
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune
from fedprompt.methods.pfedpg import PFedPG

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to

BY_NAME = {property_.name: property_ for property_ in PROPERTIES}


def failures(method: type[Method], params: dict[str, object] | None = None) -> dict[str, str]:
    return {result.name: result.reason for result in check_method(method, params) if not result.ok}


@pytest.mark.parametrize("name", registry().names())
@pytest.mark.slow
def test_every_registered_method_conforms(name: str) -> None:
    assert failures(registry().get(name)) == {}


@pytest.mark.parametrize("memory", [0, 2**30], ids=["no tokens kept", "all tokens kept"])
@pytest.mark.parametrize("name", ["pfedbayespt-d", "pfedbayespt"])
@pytest.mark.slow
def test_methods_conform_whatever_tokens_are_kept(name: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "TOKEN_MEMORY", memory)
    assert failures(registry().get(name)) == {}


@pytest.mark.parametrize("name", ["fedvpt-d", "pfedbayespt", "sgpt"])
@pytest.mark.slow
def test_methods_conform_if_clients_that_did_not_change_are_not_counted_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_due, memories = evaluation.evaluate_due, WeakKeyDictionary[Federation, Counts]()
    counted: list[int] = []

    def remembering(
        federation: Federation, state: FederationState, evaluations: Sequence[Evaluation]
    ) -> list[ClientScores]:
        counted.append(state.round)
        return evaluate_due(federation, state, evaluations, memories.setdefault(federation, Counts()))

    monkeypatch.setattr(evaluation, "evaluate_due", remembering)
    found = failures(registry().get(name))
    # This property reads scores, and what is remembered has none.
    assert found.keys() <= {"evaluation without side effects"}
    assert len(counted) > 10


@pytest.mark.parametrize("method", UNUSUAL)
@pytest.mark.slow
def test_methods_of_unusual_build_conform(method: type[Method]) -> None:
    assert failures(method) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", [{"init": "tokens"}, {"length": 0}, {"head_init": "zeros"}, {"head_lr": 0.1}], ids=str
)
def test_other_parameters_conform(params: dict[str, object]) -> None:
    assert failures(FedVPT, params) == {}


def test_moments_of_a_server_survive_an_interruption_and_move_it_on_their_own() -> None:
    assert failures(PFedPG, {"gen_optimizer": "adam"}).keys() == {"zero epochs"}


@pytest.mark.parametrize(("method", "name"), BROKEN, ids=[f"{method.__name__}-{name}" for method, name in BROKEN])
def test_a_broken_method_is_caught_by_the_property_meant_for_it(method: type[Method], name: str) -> None:
    result = check_property(BY_NAME[name], method)
    assert not result.ok
    assert result.reason
    assert "\n" not in result.reason


def test_a_method_that_is_right_with_one_head_only_is_caught() -> None:
    class Forgets(FedVPT):
        """It takes the head to be local, whatever the task says."""

        def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
            return self._head(rng)

    result = check_property(BY_NAME["payload"], Forgets)
    assert result.reason.startswith("with a global head: personal head.bias, head.weight is in the payload")


def test_every_property_is_proven_able_to_fail() -> None:
    assert {name for _, name in BROKEN} == set(BY_NAME)


def test_all_properties_are_reported_after_a_failure() -> None:
    class Raises(HeadTune):
        def loss(self, theta: State, batch: Batch) -> torch.Tensor:  # noqa: ARG002
            raise IndexError("no such\nexpert")

    results = check_method(Raises)
    assert [result.name for result in results] == list(BY_NAME)
    assert {result.reason for result in results if result.name == "resume"} == {"IndexError: no such expert"}


def test_the_reason_names_the_tensor() -> None:
    result = check_property(BY_NAME["trainable tensors move"], broken_learners.DeepPromptsWithoutEffect)
    assert result.reason.startswith("prompts has a learning rate but never moves")


def test_a_declared_stop_of_the_gradient_is_not_held_against_a_method() -> None:
    class Declared(broken_learners.DetachedPenalty, StopGradients):
        stop_gradients = {"prompt": "the penalty is monitored, not trained"}  # noqa: RUF012

    assert check_property(BY_NAME["gradient matches the loss"], Declared).ok


def test_wrong_parameters_are_the_users_error() -> None:
    with pytest.raises(UserError, match="lenght"):
        check_method(FedVPT, {"lenght": 3})


def test_the_default_precision_is_given_back() -> None:
    check_property(BY_NAME["stacking"], HeadTune)
    assert torch.get_default_dtype() == torch.float32


def test_a_plugin_file_can_be_checked(tmp_path: Path) -> None:
    file = tmp_path / "leaks.py"
    file.write_text(
        "import torch\n"
        "from fedprompt.methods.head_tune import HeadTune\n"
        "class Leaks(HeadTune):\n"
        "    name = 'leaks'\n"
        "    def init_personal(self, rng, client):\n"
        "        return {**super().init_personal(rng, client), 'mean': torch.rand(5, generator=rng)}\n"
        "    def upload(self, theta, received):\n"
        "        return {**super().upload(theta, received), 'statistics': theta['mean']}\n"
        "    def aggregate(self, server, uploads, weights, clients):\n"
        "        return super().aggregate(server, {k: uploads[k] for k in server}, weights, clients)\n"
    )
    (name,) = load_plugin(file)
    assert set(failures(registry().get(name))) == {"payload"}


def test_the_page_of_footguns_names_every_property() -> None:
    page = (Path(__file__).parents[3] / "docs" / "footguns.md").read_text()
    assert set(re.findall(r"\*\*(.+?)\*\*", page)) == set(BY_NAME)
