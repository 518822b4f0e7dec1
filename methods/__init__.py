"""The methods, one file each, the contract they hold and the registry that finds them."""

from fedprompt.methods._contract import Method, Stage, State, Task, weighted_mean
from fedprompt.methods._registry import load_plugin, registry

__all__ = ["Method", "Stage", "State", "Task", "load_plugin", "registry", "weighted_mean"]
