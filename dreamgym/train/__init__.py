"""Training: sequences and micro-batches, advantages, the supervised trainer, the RL learner, and one file per algorithm."""
