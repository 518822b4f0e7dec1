"""Cells: what to run (suites), where (sites), how (executors), and the run folders that they leave."""
