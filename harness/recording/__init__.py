"""MLflow: what is recorded of a run, and how runs are found again."""
