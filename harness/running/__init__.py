"""Cells: what to run (suites), where (sites), how (executors, sessions), and the run folders that they leave."""
