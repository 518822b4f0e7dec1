"""Cells: what to run (suites), where (environments), how (executors, sessions), and the run folders that they leave."""
