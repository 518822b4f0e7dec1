"""FedPR: FedVPT whose prompt moves only in the null space of the prompt the server sent. Shallow and deep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.methods._contract import State
from fedprompt.methods._headed import PromptParams
from fedprompt.methods._mixins import Constants, Downloads, Steps
from fedprompt.methods._null_space import project, removed_directions
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import DeepParams, FedVPTDeep

PROJECTORS = ("gram_full", "thin", "exact")


@dataclass(frozen=True)
class ProjectionParams:
    """Options of the projection, with shallow and deep prompts alike."""

    lr: float = option(0.01, "learning rate of everything that trains", low=0, grid=(0.01, 0.05, 0.1, 0.25))
    projector: str = option(
        "gram_full",
        "directions removed: the first of all d (official), the first of the prompt's T, or all the prompt has",
        choices=PROJECTORS,
        paper="gram_full",
    )
    ratio: float = option(0.8, "share of the directions kept; 1 means FedVPT", low=0, high=1, paper="0.8")
    fro_normalize: bool = option(
        False,
        "divide the projector by its Frobenius norm: steps 25 times shorter at d = 768",
        paper="true",
        grid=(False, True),
    )
    project_first_round: bool = option(False, "project in round 1 too", paper="false")
    projector_of: str = option(
        "received",
        "prompt whose directions are removed: the one just received, or the server's after the client's last visit (a "
        "first visit is then unprojected in any round); they differ if not all clients take part in every round",
        choices=("received", "last_visit"),
        paper="last_visit",
    )


@dataclass(frozen=True)
class ShallowProjectionParams(ProjectionParams, PromptParams):
    pass


@dataclass(frozen=True)
class DeepProjectionParams(ProjectionParams, DeepParams):
    pass


class FedPRShallow(FedVPT, Constants, Downloads, Steps):
    """FedVPT with a basis of what steps lose, computed once per visit."""

    name = "fedpr-s"
    title = "FedPR-S"
    order = 40
    paper = "Feng et al., Learning Federated Visual Prompt in Null Space for MRI Reconstruction (CVPR 2023)"
    Params: ClassVar[type] = ShallowProjectionParams

    # -- projector_of=last_visit: the server remembers, for each client, its prompt after the client's last visit ------

    def init_server(self, rng: torch.Generator) -> State:
        server, clients = super().init_server(rng), self.task.num_clients
        if self.params.projector_of == "received":
            return server
        last = {f"last {name}": torch.zeros(clients, *x.shape) for name, x in server.items() if is_prompt(name)}
        return {**server, **last, "visited": torch.zeros(clients, dtype=torch.bool)}

    def download(self, server: State, clients: Sequence[int]) -> State:
        per_client = {name: x[list(clients)] for name, x in server.items() if is_memory(name)}
        return super().download({k: x for k, x in server.items() if k not in per_client}, clients) | per_client

    def sent_tensors(self, received: State, position: int) -> State:
        """Not the memory of a client that the server has not seen, nor that it has not: the client knows."""
        seen = "visited" in received and (received["visited"].is_meta or bool(received["visited"][position]))
        return {k: x[position] for k, x in received.items() if not is_memory(k) or (seen and k != "visited")}

    def upload(self, theta: State, received: State) -> State:
        return super().upload(theta, {name: x for name, x in received.items() if not is_memory(name)})

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        new = super().aggregate(server, uploads, weights, clients)
        rows = list(clients)
        for name in filter(is_memory, server):
            new[name] = server[name].clone()
            new[name][rows] = True if name == "visited" else new[name.removeprefix("last ")]
        return new

    # -- the client ----------------------------------------------------------------------------------------------------

    def begin_visit(self, theta: State, round_: int) -> State:
        remembers = "visited" in theta
        if round_ == 1 and not remembers and not self.params.project_first_round:
            return {}
        return {
            f"removed {name}": removed_directions(
                theta[f"last {name}"] if remembers else tensor, self.params.projector, self.params.ratio
            )
            for name, tensor in theta.items()
            if is_prompt(name)
        }

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:
        removed = start.get(f"removed {name}")
        if removed is None:
            return step
        projected = project(step, removed, self.params.fro_normalize)
        if "visited" not in start:
            return projected
        return torch.where(start["visited"].view(-1, *[1] * (step.dim() - 1)), projected, step)


def is_memory(name: str) -> bool:
    """Whether a tensor is what the server remembers of each client."""
    return name == "visited" or name.startswith("last ")


def is_prompt(name: str) -> bool:
    return not name.startswith("head.") and not is_memory(name)


class FedPRDeep(FedPRShallow, FedVPTDeep):
    """The same for the prompts of every block, each with its own basis."""

    name = "fedpr-d"
    title = "FedPR-D"
    order = 41
    payload_formula = FedVPTDeep.payload_formula
    Params: ClassVar[type] = DeepProjectionParams
