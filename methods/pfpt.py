"""PFPT: prompts are a set. The server matches those of different clients that belong together, and merges them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.core.rng import torch_rng
from fedprompt.methods._contract import State
from fedprompt.methods._headed import PromptParams
from fedprompt.methods._mixins import Downloads, stacked
from fedprompt.methods._prompt_matching import Matching, match_by_counts, match_by_networks, means_of_matches
from fedprompt.methods.fedvpt import FedVPT

PRIVATE = ("key", "round", "groups")  # of the server


@dataclass(frozen=True)
class MatchingParams(PromptParams):
    solver: str = option(
        "networks",
        "how prompts are matched: by networks trained in every round, or by counts alone",
        choices=("networks", "counts"),
        paper="networks",
    )
    sweeps: int = option(50, "passes of the matching over all clients", low=1, paper="50")
    rule: str = option(
        "odds", "worth of a candidate besides its density: its log odds, or as coded", choices=("odds", "code")
    )
    drift: bool = option(False, "whether networks move candidates away from the prompts they stand for", paper="true")
    spread: float = option(0.3, "standard deviation of matching prompts, for solver = counts", low=1e-6)


class PFPT(FedVPT, Downloads):
    """FedVPT's client. The server matches the rows of all uploads before it averages them."""

    name = "pfpt"
    title = "PFPT"
    order = 22
    paper = "Weng et al., Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data (NeurIPS 2024)"
    paper_policy = "global"
    Params: ClassVar[type] = MatchingParams

    def init_server(self, rng: torch.Generator) -> State:
        state = super().init_server(rng)
        key = torch.randint(2**31, (), generator=rng)  # of the server's own draws, with the round
        return {**state, "key": key, "round": torch.zeros_like(key), "groups": torch.zeros_like(key)}

    def download(self, server: State, clients: Sequence[int]) -> State:
        return stacked({name: tensor for name, tensor in server.items() if name not in PRIVATE}, clients)

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        prompts, round_ = uploads["prompt"].double(), server["round"] + 1
        matching = self.match(prompts, torch_rng(int(server["key"]), "init", "pfpt", int(round_)))
        mean = super().aggregate(server, {k: v for k, v in uploads.items() if k != "prompt"}, weights, clients)
        groups = (torch.bincount(matching.choices.flatten()) > 0).sum()
        return {
            **mean,
            "prompt": self.merged(prompts, matching).to(server["prompt"]),
            "round": round_,
            "groups": groups,
        }

    def match(self, prompts: Tensor, rng: torch.Generator) -> Matching:
        params = self.params
        if params.solver == "counts":
            return match_by_counts(prompts, rng, params.sweeps, params.spread)
        return match_by_networks(prompts, rng, params.sweeps, params.rule, params.drift)

    def merged(self, prompts: Tensor, matching: Matching) -> Tensor:
        """The T candidates that most clients agree on, (T, d), in the order of the slots they come from.

        Without drift the best place of a candidate is the mean of its prompts.
        """
        rows, total = prompts.shape[1], len(matching.candidates)
        means, held = means_of_matches(prompts, matching.choices, matching.candidates)
        slots = torch.arange(rows, dtype=held.dtype, device=held.device).expand(matching.choices.shape)[..., None]
        slot = means_of_matches(slots, matching.choices, held.new_zeros(total, 1))[0][:, 0].tolist()
        worth = list(zip(held.tolist(), matching.belief.tolist(), strict=True))
        best = sorted(range(total), key=lambda i: (-worth[i][0], -worth[i][1], i))[:rows]
        return (matching.candidates if self.params.drift else means)[sorted(best, key=lambda i: (slot[i], i))]
