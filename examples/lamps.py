"""The smallest environment with rules: light the lamps that the task names, then leave.

PYTHONPATH=. .venv/bin/dreamgym train runs/lamps --config examples/lamps.toml
"""

import re
from itertools import combinations

import dreamgym as dg


class Lamps:
    name = "lamps"

    def accepts(self, task):
        return task.goal is not None  # synthetic tasks have none

    def reset(self, task):
        self.goal, self.lit = task.goal["lamps"], set()
        return {"lit": "none"}

    def step(self, action):
        if action == "leave":
            return {"lit": "unknown, you are outside"}, float(self.lit == set(self.goal)), True
        self.lit ^= set(re.findall("^press ([1-8])$", action))
        return {"lit": " ".join(sorted(self.lit)) or "none"}, 0.0, False


class LampRules(dg.TextRules):
    name = "lamps"

    def abstract(self, raw):
        return dg.Observation(f"lit: {raw['lit']}")

    def admissible(self, observation, history, action):
        return "outside" not in observation.text and re.fullmatch("press [1-8]|leave", action) is not None

    def check_success(self, instruction, history, claim):
        right = re.findall(r"\d", instruction) == re.findall(r"\d", claim.state.text)
        return dg.Verdict("passed" if right and claim.action == "leave" else "refused")


class LampSuite(dg.EnvSuite):
    name, rules, max_steps, scripted_policies = "lamps", LampRules(), 10, {"expert": 0.2, "careless": 0.8}

    def all_tasks(self):
        goals = [lamps for size in (1, 2, 3, 4) for lamps in combinations("12345678", size)]
        return [dg.Task("".join(lamps), f"light {' '.join(lamps)} and leave", "lamps", goal={"lamps": lamps}) for lamps in goals]

    def env(self):
        return Lamps()

    def scripted_action(self, task, policy, state, rng):
        if policy == "careless" and rng.random() < 0.2:
            return rng.choice(["leave", "press 9", "press 8", "press 5", "press 2"])
        missing = set(re.findall(r"\d", task.instruction)) ^ set(re.findall(r"\d", state.text))
        return f"press {min(missing)}" if missing else "leave"


make = LampSuite
