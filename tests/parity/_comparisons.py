"""Every comparison with the authors' code, by the file of vectors that it reads."""

from functools import partial
from typing import NamedTuple

from fedprompt.methods.coop import CoOp
from fedprompt.methods.fedpr import FedPRDeep, FedPRShallow
from fedprompt.methods.pfedpg import PFedPG
from parity import _flows, _steps
from parity._feed import Case
from parity._steps import Comparison


class Vectors(NamedTuple):
    """One case of a file and the function that compares it with our class."""

    file: str
    prefix: str
    compare: Comparison
    variant: str = ""  # the method that is fed, if the case names another, or an option that the case does not set

    @property
    def name(self) -> str:
        """`file/case` or `file/case (variant)`, as parity.toml refers to it."""
        return f"{self.file}/{self.prefix}".rstrip("/") + (f" ({self.variant})" if self.variant else "")

    def case(self) -> Case:
        return Case(self.file, self.prefix)


STEPS = {"dp_fpl": _steps.dp_fpl, "fedmgp": _steps.fedmgp}  # of the others: `_steps.step`
COMPARISONS = (
    Vectors("clip_towers", "", _steps.towers),
    Vectors("clip_towers", "", _steps.zero_shot, "zs-clip"),
    *(
        Vectors(file, prefix, STEPS.get(file, _steps.step))
        for file, prefixes in _steps.CASES.items()
        for prefix in prefixes
    ),
    Vectors("promptfl", "coop/", _steps.fed_to(CoOp), "coop"),
    Vectors("vpt", "shallow/", _steps.fed_to(PFedPG), "pfedpg"),
    Vectors("vpt", "shallow/", _steps.fed_to(FedPRShallow), "fedpr-s"),
    Vectors("vpt", "deep/", _steps.fed_to(FedPRDeep), "fedpr-d"),
    Vectors("fedotp", "published_stop/", partial(_steps.step, stop="batch")),
    Vectors("fedpha", "rho_0.8/", _steps.through_the_decomposition, "svd_gradient"),
    Vectors("fedpha", "rho_0.5/", _steps.through_the_decomposition, "svd_gradient"),
    Vectors("promptfl", "words/", _steps.words),
    Vectors("promptfl", "mean/", _flows.mean),
    Vectors("fedmgp", "likeness/", _flows.fedmgp_likeness),
    *(Vectors("sgpt", prefix, _flows.sgpt) for prefix in ("cifar/", "office/", "three_epochs/")),
    Vectors("pfedmoap", "selection/", _flows.pfedmoap_selection),
    Vectors("pfedmoap", "flow/", _flows.pfedmoap_flow),
    *(Vectors("pfedpg", prefix, _flows.pfedpg) for prefix in ("one_head/", "four_heads/")),
    *(Vectors("fedpr", prefix, _flows.fedpr) for prefix in ("two_removed/", "five_removed/", "four_removed/")),
    Vectors("fedpr", "flow/", _flows.fedpr_flow),
    Vectors("fedpr", "flow/", _flows.fedpr_last_visits, "last_visit"),
)
