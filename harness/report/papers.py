"""The papers whose printed values stand beside ours: who wrote them, what they print where, how they ran it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class PaperProtocol:
    """How the paper ran a data set, where it may differ from ours."""

    dataset: str  # our name of it
    participation: float
    unseen_participation: float = 1.0
    clients: int = 0  # 0: the partition tells
    partition: str = ""  # without shots; empty where the label of a setting tells
    shots: int = 0  # 0 means all images
    backbone: str = "ViT-B/16"
    image_size: int = 224
    rounds: int = 100
    epochs: int = 5
    last: int = 0  # rounds that are averaged; 0: the paper does not say
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Paper:
    """One file of `results/paper`, named by its key in `PAPERS`."""

    citation: str
    printed_in: Mapping[str, tuple[set[int], Mapping[str, str]]]  # by kind: tables, and their name for our metrics
    protocols: Mapping[str, PaperProtocol]  # by data set, as the paper calls it
    general: str  # what to know about its values as a whole
    about: Mapping[str, str] = field(default_factory=dict)  # and about those of a data set
    titles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of rows that the paper calls otherwise
    has_heads: bool = True


CLIENT_MEAN = {"average": "mean client test accuracy (%)"}
MISPAIRED = (
    "Not a valid target. Zero-shot CLIP, which needs no training, is printed at chance ({} % of ten classes). In five "
    "public code bases of this setting, the paper's own among them, the loader pairs images with other images' labels "
    "and takes class names from an unordered set, and the spread of the printed values suggests that it was in use. "
    "In a simulation of the split, answering each client's most frequent training class without looking at the image "
    "reaches 40 %, the range of the printed winners. Here every image has its own label: expect far higher "
    "accuracies."
)
FEW_SHOT = {
    "Flowers102": "flowers102",
    "OxfordPets": "oxford-pets",
    "Food101": "food101",
    "Caltech101": "caltech101",
    "DTD": "dtd",
}
RN50, VIT_B16 = "CLIP RN50", "CLIP ViT-B/16"
BY_DOMAIN = "domain-dirichlet:alpha=0.3,clients=5"
BY_LABEL = "dirichlet:alpha=0.5,clients=100"

PAPERS = {
    "vit": Paper(
        "Ye et al., Instance-wise Personalized FL via Semi-Implicit Bayesian Prompt Tuning (pFedBayesPT), CIKM 2025",
        {
            "heterogeneity": ({1, 2}, {"average": "Average", "worst_local": "Worst Local"}),
            "unseen": ({3}, {"unseen_average": "Unseen Average"}),
            "ablation": ({4}, {"average": "Average"}),
            "vsweep": ({1, 2}, {"average_samples_5": "Average"}),  # of Figure 1 only V=5 is printed, in those tables
        },
        {
            "DomainNet": PaperProtocol("domainnet", 1.0, 1.0, clients=6, last=10),
            "CIFAR-100": PaperProtocol("cifar100", 0.05, 0.1, clients=100, last=10),
        },
        "The paper prints no spread over seeds, and names no data on which learning rates, depths and FedPR's variant "
        "were chosen.",
        about={
            "DomainNet": "The paper draws 1,830 images of each domain and does not say whether test images are among "
            "them, nor which clients share a domain for 1 < m < 6.",
        },
        titles={"head-tune": ("Head-Tune",), "fedpr-s": ("FedPR",), "fedpr-d": ("FedPR",)},
    ),
    "clip": Paper(
        "Luo, Chen and Wu, Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language Models "
        "(pFedMoAP), ICLR 2025",
        {"heterogeneity": ({1, 2, 3, 4}, CLIENT_MEAN)},
        {
            **{
                name: PaperProtocol(ours, 1.0, partition="disjoint:clients=10", shots=16, backbone=RN50, rounds=10)
                for name, ours in FEW_SHOT.items()
            },
            "CIFAR10": PaperProtocol("cifar10", 0.1, partition=BY_LABEL, backbone=RN50, rounds=120),
            "CIFAR100": PaperProtocol("cifar100", 0.1, partition=BY_LABEL, backbone=RN50, rounds=120),
            "DomainNet": PaperProtocol("domainnet", 0.25, partition=BY_DOMAIN, backbone=VIT_B16, rounds=25),
            "Office-Caltech10": PaperProtocol(
                "office-caltech10", 0.5, partition=BY_DOMAIN, backbone=VIT_B16, rounds=25
            ),
        },
        "The paper does not say which round it prints; its code shows the best one and the mean of the last five. "
        "That code scores clients of pFedMoAP right after their own training, those of global methods after the "
        "aggregation. CoOp trains for 25 epochs there, the federated methods for up to 50.",
        about={"DomainNet": MISPAIRED.format("9.81"), "Office-Caltech10": MISPAIRED.format("9.40")},
        titles={
            "coop": ("CoOp",),
            "promptfl-ft": ("PromptFL+FT",),
            "pfedmoap": ("pFedMoAP", "pFedMoAP (lambda=0.5)"),
            "pfedmoap-lambda-0": ("pFedMoAP (lambda=0.0)",),
        },
        has_heads=False,
    ),
}


def printed_source(published: str) -> tuple[str, str]:
    """Paper and data set that a setting names: `clip/DomainNet`, or `DomainNet` for the ViT paper."""
    paper, slash, dataset = published.rpartition("/")
    return (paper, dataset) if slash else ("vit", dataset)


def setting_labels(settings: "pd.Series[str]", paper: str) -> "pd.Series[str]":
    """How our settings find a printed one: by its label, or by nothing where the paper prints one number for each.

    Values of single domains have a label that no setting of ours has.
    """
    if paper != "clip":
        return settings
    domains = settings.str.extract("domain=(.*)", expand=False)
    return domains.where(domains != "Average").fillna("")
