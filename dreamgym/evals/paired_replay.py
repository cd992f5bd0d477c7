"""Paired replay: what the real environment says of an episode that was dreamed.

The dreamed action sequence is executed in the real environment on the same task. Where the two part, and whether they end alike,
is the only direct measure of a dream under the policy that is trained in it; accuracy on logged data does not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dreamgym.evals.attribution import JudgedStep
from dreamgym.protocols import RealEnv
from dreamgym.statistics import Rate, wilson
from dreamgym.types import DecidedBy, Trajectory, Transition, Turn


@dataclass(frozen=True)
class Replay:
    """One dreamed episode beside its replay in the real environment."""

    dreamed_success: bool
    real_success: bool
    ended: bool  # the dream terminated (rather than running into the horizon)
    agreeing_steps: int  # next states equal before the first divergence
    steps: int  # taken in the real environment, which may have ended before the dream did
    diverged: bool
    raw_success: bool  # whether the model claimed a success at any step, before the guard, which may have taken it back
    differs: bool  # in state, the first one too, in reward or end, or in where the episode is cut
    reward_error: float  # sum of |dreamed reward - real reward| over the compared steps
    valid: tuple[int, int] = (0, 0)  # (next states exactly right, compared) of actions that changed something in reality
    invalid: tuple[int, int] = (0, 0)  # the same of actions that changed nothing
    generated: tuple[int, int] = (0, 0)  # the same of valid actions that no rule and no memory answered
    judged: tuple[JudgedStep, ...] = field(default=(), compare=False)  # each compared step
    out_of_support: bool = False  # some step of the dream has no precedent in real memory
    real_ended: bool = True  # the real episode terminated, by the last of these actions or before
    reward_range: tuple[float, float] = (0.0, 1.0)  # the smallest that holds 0, 1, and the rewards and returns of both sides

    @property
    def compared(self) -> int:
        """Steps up to and with the first that parts: beyond it dream and reality are asked different questions."""
        return self.agreeing_steps + self.diverged


@dataclass(frozen=True)
class Fidelity:
    """A set of paired replays in rates."""

    dream_success: Rate
    real_success: Rate
    false_success: Rate  # dreamed successes that are none, among these and the dreamed failures that really end in failure
    false_failure: Rate  # of episodes that really succeed, the share the dream called a failure
    raw_false_success: Rate  # the same by the model's own claims
    premature_failure: Rate  # of dreams that end as a failure, the share in which the real episode goes on
    consistency: Rate  # of dreamed successes, the share that really succeed
    state_exact: Rate  # steps before or at the first divergence whose next state is equal
    state_exact_valid: Rate  # the same, of actions that changed something in reality
    state_exact_invalid: Rate  # and of actions that changed nothing
    state_exact_generated: Rate  # and of valid actions that no rule and no memory answered
    first_divergence: float | None  # mean step (from 1) of the first divergence, among episodes that diverge
    masked_share: Rate | None = None  # of all episodes that reality can repeat, those the guard left out; None: nobody looked
    false_failure_at_most: Rate | None = None  # false failure if every left-out episode that really succeeds were called a failure

    @property
    def accepted_false(self) -> Rate:
        """Of dreamed successes, the share that are false."""
        return wilson(round((1 - self.consistency.value) * self.consistency.n), self.consistency.n)

    @property
    def gap(self) -> float:
        return self.dream_success.value - self.real_success.value


def replay(episodes: Sequence[Trajectory], real: RealEnv, *, answered_by: DecidedBy = "generated") -> list[Replay]:
    """Execute each dreamed episode's actions in the real environment. Episodes of synthetic tasks cannot be, and are left out."""
    return [compare(episode, twin, answered_by=answered_by) for episode, twin in paired_episodes(episodes, real)]


def paired_episodes(episodes: Sequence[Trajectory], real: RealEnv) -> list[tuple[Trajectory, Trajectory]]:
    """Each sound episode that can be replayed, with its real replay."""
    return replay_actions([episode for episode in episodes if episode.error is None], real)


def masked_episodes(episodes: Sequence[Trajectory], real: RealEnv) -> list[Replay]:
    """What reality says of the episodes that the guard left out, because it disagrees with the model or that with itself.

    `replay` leaves them out as well, so no rate of it counts them: give these to `summarise`, and it says how much they could hide.
    """
    return [compare(episode, twin) for episode, twin in replay_actions([episode for episode in episodes if episode.masked], real)]


def summarise(replays: Sequence[Replay], left_out: Sequence[Replay] | None = None) -> Fidelity:
    """Rates over terminals and steps. `left_out` are the `masked_episodes` episodes of the same dreams; they are in two rates of their
    own."""
    failing = [r for r in replays if not r.real_success and (r.dreamed_success or (r.ended and r.real_ended))]
    # the guard may have taken a claimed end back
    raw_failing = [r for r in replays if not r.real_success and (r.raw_success or (r.ended and r.real_ended))]
    given_up = [r for r in replays if r.ended and not r.dreamed_success]
    succeeding = [r for r in replays if r.real_success]
    claimed = [r for r in replays if r.dreamed_success]
    lost = [r for r in succeeding if not r.dreamed_success]
    hidden = sum(r.real_success for r in left_out or ())
    divergences = [r.agreeing_steps + 1 for r in replays if r.diverged]
    return Fidelity(
        dream_success=wilson(len(claimed), len(replays)),
        real_success=wilson(len(succeeding), len(replays)),
        false_success=wilson(sum(r.dreamed_success for r in failing), len(failing)),
        false_failure=wilson(len(lost), len(succeeding)),
        raw_false_success=wilson(sum(r.raw_success for r in raw_failing), len(raw_failing)),
        premature_failure=wilson(sum(not r.real_ended for r in given_up), len(given_up)),
        consistency=wilson(sum(r.real_success for r in claimed), len(claimed)),
        state_exact=wilson(sum(r.agreeing_steps for r in replays), sum(r.compared for r in replays)),
        state_exact_valid=wilson(sum(r.valid[0] for r in replays), sum(r.valid[1] for r in replays)),
        state_exact_invalid=wilson(sum(r.invalid[0] for r in replays), sum(r.invalid[1] for r in replays)),
        state_exact_generated=wilson(sum(r.generated[0] for r in replays), sum(r.generated[1] for r in replays)),
        first_divergence=sum(divergences) / len(divergences) if divergences else None,
        masked_share=None if left_out is None else wilson(len(left_out), len(left_out) + len(replays)),
        false_failure_at_most=None if left_out is None else wilson(len(lost) + hidden, len(succeeding) + hidden),
    )


def by_support(replays: Sequence[Replay], left_out: Sequence[Replay]) -> dict[str, tuple[Fidelity, Rate]]:
    """The rates of dreams whose every step has a precedent in real memory (`in_support`), and of those with a step that has none
    (`out_of_support`), each with its share of all: which dreams may be trusted, without asking the real environment."""
    found = {}
    for name, outside in (("in_support", False), ("out_of_support", True)):
        part, out = ([one for one in some if one.out_of_support is outside] for some in (replays, left_out))
        found[name] = summarise(part, out), wilson(len(part) + len(out), len(replays) + len(left_out))
    return found


def replay_actions(episodes: Sequence[Trajectory], real: RealEnv) -> list[tuple[Trajectory, Trajectory]]:
    """Each episode whose task reality knows, with what really follows its actions, until they or the real episode end."""
    walks = real.repeat([(episode.task, [transition.action for transition in episode.transitions]) for episode in episodes])
    return [(episode, _real_replay(episode, walk)) for episode, walk in zip(episodes, walks, strict=True) if walk]


def _real_replay(episode: Trajectory, walk: Sequence[Transition]) -> Trajectory:
    last = walk[-1]
    return Trajectory(
        f"{episode.id}/relived",
        episode.task,
        "real",
        tuple(map(Turn, walk)),
        success=last.succeeded,
        truncated=not last.terminated,
        behaviour=episode.behaviour,
    )


def compare(episode: Trajectory, real: Trajectory, *, answered_by: DecidedBy = "generated", horizon: int | None = None) -> Replay:
    """A dreamed episode beside its real replay, as `replay_actions` gives it. `answered_by`: see `ExperienceModel.answers_by`. `horizon`:
    the number of steps after which the dream is cut, where that is less than the real environment allows."""
    agreeing, diverged, reward_error = 0, False, 0.0
    real_ended = real.transitions[-1].terminated
    differs = (
        episode.transitions[0].state != real.transitions[0].state  # a policy that sees another first state may act otherwise
        or len(real.turns) < len(episode.turns)  # the environment cut its episode, or ended it
        or (horizon is not None and len(episode.turns) >= horizon and episode.truncated and not real_ended)
    )
    counts = {True: [0, 0], False: [0, 0]}  # by whether reality moved: exact, compared
    generated, judged = [0, 0], list[JudgedStep]()
    for dreamed, true in zip(episode.transitions, real.transitions, strict=False):
        exact = true.next_state == dreamed.next_state
        moved = true.next_state != true.state or true.terminated
        alike = dreamed.reward == true.reward and dreamed.terminated == true.terminated
        judged.append(JudgedStep(dreamed.info, exact, alike))
        counts[moved][0] += exact
        counts[moved][1] += 1
        if moved and dreamed.info.decided_by == answered_by:
            generated[0] += exact
            generated[1] += 1
        agreeing, diverged = agreeing + exact, not exact
        reward_error += abs(dreamed.reward - true.reward)
        differs = differs or diverged or not alike
        if diverged:
            break
    last = episode.transitions[-1]
    return Replay(
        dreamed_success=episode.success,
        real_success=real.success,
        ended=last.terminated,
        agreeing_steps=agreeing,
        steps=len(real.turns),
        diverged=diverged,
        raw_success=any(step.as_predicted.succeeded for step in episode.transitions),
        differs=differs,
        reward_error=reward_error,
        valid=(counts[True][0], counts[True][1]),
        invalid=(counts[False][0], counts[False][1]),
        generated=(generated[0], generated[1]),
        judged=tuple(judged),
        out_of_support=any(transition.info.out_of_support for transition in episode.transitions),
        real_ended=real_ended,
        reward_range=_reward_range((episode, real)),
    )


def _reward_range(episodes: Sequence[Trajectory]) -> tuple[float, float]:
    rewards = [transition.reward for episode in episodes for transition in episode.transitions]
    values = [0.0, 1.0, *rewards, *(episode.total_reward for episode in episodes)]
    return min(values), max(values)
