"""Experience that lasts: `buffer` over a store (the durable log), an index (who is near) and an encoder (what near means)."""
