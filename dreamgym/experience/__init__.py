"""The experience model: an LLM that reasons about, and then predicts, what an environment would do next.

`pipeline` is what all experience models share: rules, recall, conditions, retrieval, generation, verification. `models` holds the kinds.
`prompts` lays out what a model reads, `parse` reads what it writes, `guard` judges it, `env` makes its answers an environment, and
`dataset` turns real trajectories into training rows.

`verifiers` holds the kinds of verifiers, which give the guard a second opinion. Through instruct models (`chat_requests`, `json_replies`),
`teacher` annotates logs, `models.prompted` predicts without training, and `verifiers.chat` gives second opinions.
"""
