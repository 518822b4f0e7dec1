"""Learning rates, chosen on held-out data."""
