"""Read per-client records into pandas: the spread over clients, and how many are below chance.

python examples/records_to_pandas.py results        a results folder, or an MLflow URI
"""

import sys

from fedprompt.harness import read_records

records = read_records(sys.argv[1])
trained = records[~records["unseen"] & (records["samples"] == 0) & (records["phase"] == "final")]
last = trained[trained["round"] == trained.groupby("cell")["round"].transform("max")]
spread = last.groupby(["dataset", "method", "policy"])["accuracy"].describe(percentiles=[0.1, 0.5, 0.9])
print((100 * spread[["mean", "min", "10%", "50%", "90%"]]).round(1).assign(clients=spread["count"]))
