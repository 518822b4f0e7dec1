"""What a suite costs before it is run, and how fast the code is."""
