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
from fedprompt.methods._registry import ALIASES, Registry, load_plugin, registry
from fedprompt.methods._server_learning import LearningServer, ServerOptimiser
from fedprompt.methods._text import TextMethod, TextParams

__all__ = [
    "ALIASES",
    "Batch",
    "Edit",
    "FrozenCLIP",
    "FrozenViT",
    "HeadParams",
    "HeadedMethod",
    "LearningServer",
    "Method",
    "PromptParams",
    "Prompted",
    "Registry",
    "ServerOptimiser",
    "Stage",
    "State",
    "Task",
    "TextMethod",
    "TextParams",
    "UserError",
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
    "weighted_mean",
]
