"""The methods, one file each, and all that a method of your own needs: its contract, options, prompts and registry."""

from fedprompt.backbones.backbone import Edit, FrozenViT, Prompted, deep, insert, shallow
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Method, Stage, State, Task, weighted_mean
from fedprompt.methods._headed import (
    HeadedMethod,
    HeadParams,
    PromptParams,
    cross_entropy,
    head_init,
    linear,
    prompt_init,
    revised,
)
from fedprompt.methods._mixins import (
    Constants,
    Diagnostics,
    Downloads,
    FrozenDepth,
    OneByOne,
    OpenVocabulary,
    SeveralDraws,
    Stages,
    Statistics,
    Steps,
    StopGradients,
    UnseenClients,
    adaptation_stage,
    stacked,
)
from fedprompt.methods._registry import ALIASES, Registry, load_plugin, registry
from fedprompt.methods._server_learning import LearningServer, ServerOptimiser
from fedprompt.methods._text import TextMethod, TextParams

__all__ = [
    "ALIASES",
    "Batch",
    "Constants",
    "Diagnostics",
    "Downloads",
    "Edit",
    "FrozenCLIP",
    "FrozenDepth",
    "FrozenViT",
    "HeadParams",
    "HeadedMethod",
    "LearningServer",
    "Method",
    "OneByOne",
    "OpenVocabulary",
    "PromptParams",
    "Prompted",
    "Registry",
    "ServerOptimiser",
    "SeveralDraws",
    "Stage",
    "Stages",
    "State",
    "Statistics",
    "Steps",
    "StopGradients",
    "Task",
    "TextMethod",
    "TextParams",
    "UnseenClients",
    "UserError",
    "adaptation_stage",
    "cross_entropy",
    "deep",
    "head_init",
    "insert",
    "linear",
    "load_plugin",
    "option",
    "prompt_init",
    "registry",
    "revised",
    "shallow",
    "stacked",
    "weighted_mean",
]
