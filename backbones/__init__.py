"""The frozen backbone: its passes, weights, cached features and pretraining, and the batches that it reads."""
