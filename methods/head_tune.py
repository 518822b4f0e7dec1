"""Head-Tune: one global linear head on the frozen feature, averaged by the server. No prompts."""

from torch import Tensor

from fedprompt.harness.model.batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, HeadParams


class HeadTune(HeadedMethod):
    """Trains on features computed once for each image, so a round costs next to nothing."""

    name = "head-tune"
    title = "Head-Tune"
    order = 10
    paper = "baseline of pFedBayesPT (CIKM 2025), section 5"
    payload_formula = "C*d + C each way"
    needs = frozenset({"features"})
    Params = HeadParams
    head_mode = "global"

    def features(self, theta: State, batch: Batch) -> Tensor:  # noqa: ARG002
        return batch.features
