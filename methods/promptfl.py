"""PromptFL: one context, averaged by the server. `promptfl-ft` is its reading after each client has tuned a copy."""

from typing import ClassVar

from fedprompt.methods._text import TextMethod, TextParams


class PromptFL(TextMethod):
    """All defaults of `TextMethod`: one shared context."""

    name = "promptfl"
    title = "PromptFL"
    order = 210
    paper = "Guo et al., PromptFL: Let Federated Participants Cooperatively Learn Prompts (IEEE TMC 2023)"
    payload_formula = "m*d_t each way"
    Params: ClassVar[type] = TextParams
