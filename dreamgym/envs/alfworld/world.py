"""The real household (the `Env` protocol): one game at a time, played by the fast or the stock engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamgym.envs.alfworld.engine import EngineName, Episode, starter
from dreamgym.envs.alfworld.games import Game
from dreamgym.errors import UsageError
from dreamgym.types import Action, Task


class House:
    """One player in one house. `games` finds a task's game by the task's id.

    Raw observations are dicts of `text` (as the engine printed it), `admissible` (its list of commands, sorted), `goal` and `won`. The
    reward is 1 at the step that wins and 0 before. The horizon is the suite's business: an episode here ends when it is won.
    """

    name = "alfworld"

    def __init__(self, games: Mapping[str, Game], *, engine: EngineName = "fast") -> None:
        self.games, self.engine = games, engine
        self._start = starter(engine)
        self._game: Game | None = None
        self._episode: Episode | None = None

    def accepts(self, task: Task) -> bool:
        """Whether there is a game to play and to score the task by; a synthetic task has none."""
        return task.id in self.games

    def reset(self, task: Task) -> dict[str, Any]:
        """Enter the house of a task; UsageError for a task without a game."""
        if not self.accepts(task):
            raise UsageError(f"Task '{task.id}' has no game, so the real house cannot score it. Use synthetic tasks in a dream.")
        self._game = self.games[task.id]
        self._episode = self._start(self._game)
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward and whether the task is done. A command that is not admissible: "Nothing happens."."""
        if self._episode is None or self._episode.observation.won:
            raise UsageError("The episode has not begun or is over. Call reset(task) before step(action).")
        shown = self._episode.step(action)
        return self._raw(), float(shown.won), shown.won

    def _raw(self) -> dict[str, Any]:
        assert self._game is not None and self._episode is not None
        shown = self._episode.observation
        return {"text": shown.text, "admissible": list(shown.admissible), "goal": self._game.goal, "won": shown.won}
