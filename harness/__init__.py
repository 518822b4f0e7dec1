"""Everything that runs a method: backbone, federation, evaluation, tracking, report, command line."""
