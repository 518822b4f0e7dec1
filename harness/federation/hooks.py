"""What the harness asks of a method that may have no answer of its own: the hooks of mixins, each with its default."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedprompt.methods import (
    Batch,
    Constants,
    Diagnostics,
    Downloads,
    FrozenDepth,
    HeadedMethod,
    Method,
    OneByOne,
    OpenVocabulary,
    SeveralDraws,
    Stage,
    Stages,
    State,
    Statistics,
    Steps,
    StopGradients,
    UnseenClients,
    adaptation_stage,
    stacked,
)


def stages(method: Method, epochs: int) -> Sequence[Stage]:
    return method.stages(epochs) if isinstance(method, Stages) else [Stage("train", method.rates(), epochs)]


def end_stage(method: Method, stage: Stage, theta: State) -> State:
    return method.end_stage(stage, theta) if isinstance(method, Stages) else {}


def adaptation(method: Method, epochs: int) -> Stage:
    return method.adaptation(epochs) if isinstance(method, Stages) else adaptation_stage(method, epochs)


def clip_norm(method: Method) -> float | None:
    return method.clip_norm() if isinstance(method, Steps) else None


def project_step(method: Method, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:
    return method.project_step(name, step, start) if isinstance(method, Steps) else step


def observe(method: Method, theta: State, batch: Batch) -> State:
    return method.observe(theta, batch) if isinstance(method, Steps) else {}


def begin_visit(method: Method, theta: State, round_: int) -> State:
    return method.begin_visit(theta, round_) if isinstance(method, Constants) else {}


def begin_evaluation(method: Method, theta: State, batches: Iterable[Batch]) -> State:
    return method.begin_evaluation(theta, batches) if isinstance(method, Constants) else {}


def end_visit(method: Method, theta: State, batches: Iterable[Batch]) -> State:
    return method.end_visit(theta, batches) if isinstance(method, Statistics) else {}


def diagnostics(method: Method, theta: State, batch: Batch) -> State:
    return method.diagnostics(theta, batch) if isinstance(method, Diagnostics) else {}


def predictions(method: Method, theta: State, batch: Batch) -> dict[int, Tensor]:
    return method.predictions(theta, batch) if isinstance(method, SeveralDraws) else {0: method.predict(theta, batch)}


def download(method: Method, server: State, clients: Sequence[int]) -> State:
    return method.download(server, clients) if isinstance(method, Downloads) else stacked(server, clients)


def sent_tensors(method: Method, received: State, position: int) -> State:
    """Of one client in a stacked download."""
    if isinstance(method, Downloads):
        return method.sent_tensors(received, position)
    return {name: tensor[position] for name, tensor in received.items()}


def one_by_one(method: Method) -> OneByOne | None:
    """The method, if the clients of a round train one after the other and hand something on."""
    return method if isinstance(method, OneByOne) and method.is_one_by_one() else None


def visit_stack(method: Method, stack: int) -> int:
    """How many clients train in one pass, of the ``stack`` that memory allows."""
    return 1 if one_by_one(method) else stack


def unseen_download(method: Method, server: State, clients: Sequence[int]) -> State:
    if isinstance(method, UnseenClients):
        return method.unseen_download(server, clients)
    return download(method, server, clients)


def unseen_stages(method: Method, epochs: int) -> Sequence[Stage]:
    return method.unseen_stages(epochs) if isinstance(method, UnseenClients) else []


def fixed_inputs(method: Method) -> HeadedMethod | None:
    """The method, if its head reads the same in every epoch of an adaptation, so that `head_inputs` is asked once."""
    return method if isinstance(method, HeadedMethod) and method.fixed_inputs else None


def feature_depth(method: type[Method], params: Any) -> int | None:
    """Blocks after which features are taken, if the method needs "features"; None means all."""
    return method.feature_depth(params) if issubclass(method, FrozenDepth) else None


def input_depth(method: type[Method], params: Any) -> int | None:
    """Blocks whose inputs a batch holds: 0 if the method needs none, None for all."""
    if "layer inputs" not in method.needs:
        return 0
    return method.input_depth(params) if issubclass(method, FrozenDepth) else None


def reads_patches(method: type[Method]) -> bool:
    """Whether a batch holds embedded patches."""
    return "spatial tokens" in method.needs


def is_open_vocabulary(method: type[Method]) -> bool:
    return issubclass(method, OpenVocabulary) and method.open_vocabulary


def stop_gradients(method: Method) -> Mapping[str, str]:
    return method.stop_gradients if isinstance(method, StopGradients) else {}
