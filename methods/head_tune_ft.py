"""Head-Tune+FT: Head-Tune whose global head every client fine-tunes before evaluation. A control.

At few classes per client, most of the published gap between Head-Tune and prompt methods may come from the head, not
from the prompts.
"""

from fedprompt.methods.head_tune import HeadTune


class HeadTuneFT(HeadTune):
    name = "head-tune-ft"
    title = "Head-Tune+FT (control)"
    order = 12
    paper = "control: a personal head without prompts"
    head_mode = "global_then_ft"
