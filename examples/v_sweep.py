"""Plot accuracy over the number of averaged draws V from what MLflow holds.

python examples/v_sweep.py sqlite:///results/mlflow.db v-sweep.png
"""

import sys

import matplotlib.pyplot as plt

from fedprompt.harness import read_summaries

uri, picture = sys.argv[1], sys.argv[2]
runs = read_summaries(uri)
runs = runs[(runs["method"] == "pfedbayespt") & (runs["phase"] == "final")].dropna(subset=["average_samples_1"])
draws = range(1, 11)

figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
for partition, part in runs.groupby("partition"):
    gains = [100 * (part[f"average_samples_{v}"] - part["average_samples_1"]) for v in draws]
    ax.errorbar(draws, [gain.mean() for gain in gains], [gain.std() for gain in gains], capsize=2, label=partition)
ax.axhline(0, color="grey", linewidth=0.8)
ax.set(xlabel="averaged draws V", ylabel="accuracy minus that of V = 1 (points)", xticks=list(draws))
ax.legend(title="mean and deviation over seeds")
figure.savefig(picture, dpi=150)
print(f"{len(runs)} runs, {picture}")
