"""FedVPT-D: FedVPT with a separate prompt for every block."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT, deep
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods.fedvpt import FedVPT, SharedParams


@dataclass(frozen=True)
class DeepParams(SharedParams):
    depth: int = option(0, "prompted blocks, from the first on; 0 means all", low=0, paper="all")
    after_depth: str = option("propagate", "prompt rows after the last prompted block", choices=("propagate", "drop"))


class FedVPTDeep(FedVPT):
    """Shared: prompts (depth, T, d), one for each prompted block."""

    name = "fedvpt-d"
    title = "FedVPT-D"
    order = 21
    payload_formula = "L*T*d each way"
    Params: ClassVar[type] = DeepParams

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.depth = self.prompted_blocks("depth")

    def init_prompts(self, rng: torch.Generator) -> State:
        shape = (self.depth, self.params.length, self.backbone.width)
        return {"prompts": self.draw_prompts(shape, rng, range(self.depth))}

    def features(self, theta: State, batch: Batch) -> Tensor:
        edit = deep(batch.rows(theta["prompts"]), after_depth=self.params.after_depth)
        return batch.pad(self.backbone.cls(batch.images, edit))
