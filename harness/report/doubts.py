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
        "With 5 of 100 clients per round, some client has probably (63 %) never been selected when the last ten rounds "
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
    *(
        Doubt(
            "Not a valid target: zero-shot CLIP is printed at chance; images were probably paired with other images' "
            "labels (see above).",
            paper="clip",
            table=table,
        )
        for table in ("2", "4")
    ),
    *(
        Doubt(
            "Second-hand: equals the table of an earlier paper to the digit, whose code is not public; whether it was "
            "run again is not said.",
            paper="clip",
            table="1",
            method=method,
        )
        for method in ("pFedPrompt", "PromptFL+FT", "Prompt+FedPer", "Prompt+FedAMP")
    ),
    Doubt(
        "Nothing is trained, so a spread over seeds can come from the split alone; yet the public code fixes the "
        "split.",
        paper="clip",
        table="1",
        method="ZS-CLIP",
    ),
    Doubt(
        "A report on public code expects about 78 % at 2 images per class of prompts that clients train alone on "
        "disjoint classes.",
        paper="clip",
        table="1",
        method="CoOp",
    ),
    Doubt(
        "Images per class are not printed (the default of the public code is 16). The public code deals round(classes "
        "/ 10) classes to each client and the rest to the last one, and splits most sets into train and test as CoOp "
        "does; ours deals classes evenly and keeps the official splits.",
        paper="clip",
        table="1",
    ),
    Doubt(
        "The table's caption says 100 clients, the text 10. The public code normalises with CIFAR's own mean and "
        "standard deviation instead of CLIP's.",
        paper="clip",
        table="3",
    ),
)
