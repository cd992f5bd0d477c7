"""The experience model: an LLM that reasons about, and then predicts, what an environment would do next.

`prompts` lays out what it reads, `parse` reads what it writes, `model` asks it, `guard` doubts it, `env` makes its answers an
environment, and `dataset` turns real trajectories into what it learns from. `dreaming` is what trained and prompted models share.

Through instruct models (`asking`, `json_chat`), `teacher` annotates logs, `prompted` dreams without training, and `verifier` gives the
guard second opinions.
"""
