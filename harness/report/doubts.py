"""What is doubtful about printed numbers: footnotes of the tables that stand beside them.

Each says by the columns of `results/paper/*.csv` which numbers it is about; an empty field matches all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Doubt:
    text: str
    paper: str = "vit"  # the file: `vit` is vit_paper_results.csv
    table: str = ""
    dataset: str = ""
    setting: str = ""
    metric: str = ""
    method: str = ""

    def about(self, printed: Mapping[Any, Any]) -> bool:
        conditions = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != "text")
        return all(not value or str(printed[name]) == value for name, value in conditions)


DOUBTS = (
    Doubt(
        "With 5 of 100 clients a round, some client has probably (63 %) never been selected when the last ten rounds "
        "begin, and one without a trained head would score about 1 %. The paper prints 41 to 84 % and does not say how "
        "such clients are treated. Ours adapt a copy of the head unless the notes say otherwise. One test image is 1 "
        "to 1.5 points of a client's accuracy, so this metric is coarse as well.",
        table="2",
        metric="Worst Local",
    ),
    Doubt(
        "The paper prints the better of FedPR's shallow and deep variants; the same value stands beside both of ours.",
        method="FedPR",
    ),
    Doubt(
        "Not a target: 16 points below FedVPT, of which shallow FedPR differs by a projection only, although the "
        "better of two variants is printed.",
        table="2",
        setting="s=50",
        metric="Average",
        method="FedPR",
    ),
    Doubt(
        "One head serves all clients. On unseen clients, which adapt the head, the paper prints 94.47 at s=5 (Table 3) "
        "against 74.86 (Table 2): at small s most of the gap to other methods may be the head and not the prompts. "
        "Gains under one head policy are free of this.",
        table="2",
        method="Head-Tune",
    ),
    Doubt(
        "The printed algorithm averages this method's head over clients, but values such as 97.18 at s=5 are plausible "
        "only with a head for each client. Ours is averaged, as printed.",
        table="2",
        method="pFedBayesPT",
    ),
    Doubt(
        "Which half of the clients is unseen, and whether the mean of ten rounds or the last state is printed, is not "
        "said in the paper; ours takes a random half by seed and the last state.",
        table="3",
    ),
    Doubt(
        "The settings of the ablation are not printed. They are taken to be m=6 and s=50, because the values of the "
        "full method equal those of Tables 1 and 2 there. Printed differences are 0.5 to 0.7 points, without spread.",
        table="4",
    ),
    Doubt(
        "Not a valid target: in five public code bases of this setting the loader pairs images with other images' "
        "labels, and zero-shot CLIP at chance (9.81 and 9.40 % of ten classes) suggests that it reached these values.",
        paper="clip",
        table="2",
    ),
    Doubt(
        "Not a valid target: in five public code bases of this setting the loader pairs images with other images' "
        "labels, and zero-shot CLIP at chance (9.81 and 9.40 % of ten classes) suggests that it reached these values.",
        paper="clip",
        table="4",
    ),
    *(
        Doubt(
            "Second-hand: equals the table of an earlier paper to the digit; its code is not public.",
            paper="clip",
            table="1",
            method=method,
        )
        for method in ("pFedPrompt", "PromptFL+FT", "Prompt+FedPer", "Prompt+FedAMP")
    ),
)

GENERAL = (
    "The paper prints no spread over seeds, and names no data on which learning rates, depths and FedPR's variant were "
    "chosen."
)
DATA = {
    "DomainNet": "The paper draws 1,830 images of each domain and does not say whether test images are among them, nor "
    "which clients share a domain for 1 < m < 6.",
}
