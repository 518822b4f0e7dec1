"""pFedBayesPT: each image has a prompt of its own, drawn from a posterior that encoders read off its frozen tokens.

Three variants of one model (`_instance_prompts.py`). -D: the prompt is the encoders' mean. -G: a Gaussian around it,
held to a prior. Full: the encoders see randomly masked tokens, so that the Gaussian's parameters are random too (a
semi-implicit posterior), and its density is that of a mixture over further masks. -G has the code for both.
"""

from typing import ClassVar

from fedprompt.methods._bayes_params import SemiImplicitParams
from fedprompt.methods.pfedbayespt_g import PFedBayesPTG


class PFedBayesPT(PFedBayesPTG):
    name, title, order = "pfedbayespt", "pFedBayesPT", 62
    Params: ClassVar[type] = SemiImplicitParams
