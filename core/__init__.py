"""What everything else stands on: errors, options, random numbers, progress bars, files. Imports nothing of ours."""
