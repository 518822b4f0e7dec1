"""No prompt: a linear head on the frozen feature, under any policy of the head. The control of every column.

With a global head it is what papers call Head-Tune. `local-head` and `head-tune-ft` name it under the policies `local`
and `global_then_ft`.
"""

from torch import Tensor

from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, HeadOnlyParams


class HeadTune(HeadedMethod):
    """Trains on features computed once for each image, so a round costs next to nothing."""

    name = "head-tune"
    title = "No prompt"
    order = 10
    paper = "baseline of pFedBayesPT (CIKM 2025), section 5"
    payload_formula = "0 each way"
    needs = frozenset({"features"})
    Params = HeadOnlyParams
    paper_policy = "global"

    def features(self, theta: State, batch: Batch) -> Tensor:  # noqa: ARG002
        return batch.features
