"""A federation of clients: their data, local training, rounds, evaluation and metrics."""
