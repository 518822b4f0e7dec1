"""The methods, one file each, the contract they hold and the registry that finds them."""

from fedprompt.harness.core.fields import option
from fedprompt.harness.model.batch import Batch
from fedprompt.methods._contract import Method, Stage, State, Task, weighted_mean
from fedprompt.methods._headed import HeadedMethod, HeadParams, PromptParams
from fedprompt.methods._registry import load_plugin, registry

__all__ = [
    "Batch",
    "HeadParams",
    "HeadedMethod",
    "Method",
    "PromptParams",
    "Stage",
    "State",
    "Task",
    "load_plugin",
    "option",
    "registry",
    "weighted_mean",
]
