"""The replay buffer over a store (the durable log), an index (nearest neighbours) and an encoder (the distance)."""
