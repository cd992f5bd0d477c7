"""What a learned verifier is made of: features of a claim, negatives from logs, the fitted head, its calibration, support, and probes."""
