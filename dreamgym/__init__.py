"""Train LLM agents with online RL inside an LLM experience model (DreamGym, arXiv:2511.03773).

`import dreamgym as dg` gives the names of the table below. A name is imported at its first use, so that `import dreamgym` loads no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamgym import loop as loop
    from dreamgym import rollout as rollout
    from dreamgym.config import Config as Config
    from dreamgym.config import build as build
    from dreamgym.envs.base import EnvSuite as EnvSuite
    from dreamgym.envs.base import TextRules as TextRules
    from dreamgym.envs.base import play as play
    from dreamgym.plugins import make as make
    from dreamgym.recipes.acting import TrainedPolicy as TrainedPolicy
    from dreamgym.recipes.serve import open_dream as open_dream
    from dreamgym.replay.buffer import ReplayBuffer as ReplayBuffer
    from dreamgym.runs.episodes import write_trajectories as write_trajectories
    from dreamgym.train.objective import LossInputs as LossInputs
    from dreamgym.train.objective import LossOutputs as LossOutputs
    from dreamgym.train.objective import ObjectiveConfig as ObjectiveConfig
    from dreamgym.train.objective import regularised as regularised
    from dreamgym.types import Observation as Observation
    from dreamgym.types import Task as Task
    from dreamgym.types import Trajectory as Trajectory
    from dreamgym.types import Transition as Transition
    from dreamgym.types import Turn as Turn
    from dreamgym.types import Verdict as Verdict
else:
    import importlib

    MODULES = {
        "types": "Observation Task Trajectory Transition Turn Verdict",
        "envs.base": "EnvSuite TextRules play",
        "config": "Config build",
        "plugins": "make",
        "replay.buffer": "ReplayBuffer",
        "train.objective": "LossInputs LossOutputs ObjectiveConfig regularised",
        "loop": "",  # dg.loop.train
        "rollout": "",  # dg.rollout.rollout
        "recipes.acting": "TrainedPolicy",
        "recipes.serve": "open_dream",
        "runs.episodes": "write_trajectories",
    }
    HOME = {name: module for module, names in MODULES.items() for name in names.split() or [module]}

    def __getattr__(name: str) -> object:
        if name not in HOME:
            raise AttributeError(f"module 'dreamgym' has no attribute '{name}'. It offers {', '.join(sorted(HOME))}.")
        module = importlib.import_module(f"dreamgym.{HOME[name]}")
        return module if HOME[name] == name else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted(HOME)
