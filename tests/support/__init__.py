"""What tests share: small methods, suites and run folders."""
