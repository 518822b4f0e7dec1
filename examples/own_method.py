"""A method of your own in one file: FedVPT with a proximal term.

fedprompt check fedvpt-prox --plugin examples/own_method.py
fedprompt bench embedded --plugin examples/own_method.py      # one more row in every table
"""

from dataclasses import dataclass

from fedprompt.methods import PromptParams, option
from fedprompt.methods.fedvpt import FedVPT


@dataclass(frozen=True)
class ProxParams(PromptParams):
    mu: float = option(0.5, "pull towards the received prompt; 0 means FedVPT", low=0, grid=(0.1, 0.5, 1.0))


class FedVPTProx(FedVPT):
    """FedVPT with a proximal term."""

    name, title, order = "fedvpt-prox", "FedVPT+Prox", 22
    paper = "Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020)"
    Params = ProxParams

    def loss(self, theta, batch):
        drift = (theta["prompt"] - batch.start["prompt"]).flatten(1)
        return super().loss(theta, batch) + self.params.mu / 2 * drift.square().sum(1)
