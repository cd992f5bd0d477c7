"""Every number of a run, explained once. The report's notes and docs/metrics.md are made from this table."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What a number is, in what unit, and how it looks when something is wrong."""

    unit: str
    meaning: str
    worry: str


METRICS: dict[str, dict[str, Metric]] = {
    "Results": {
        "real_success": Metric(
            "share", "greedy episodes on held-out tasks that end with reward 1 in the real environment", "not above the warm start's"
        ),
        "sampled": Metric(
            "share",
            "the same with actions sampled at temperature 1, the default of training",
            "far below greedy: the policy's distribution is flat",
        ),
        "ci95": Metric(
            "share",
            "95 % Wilson interval of a success rate over episodes; it does not cover differences between seeds",
            "intervals of two rows overlap: their order is not established",
        ),
        "per_seed": Metric("share", "the rate of each seed", "one seed is far from the others"),
        "seed_ci95": Metric(
            "share",
            "95 % t interval of a rate over seeds, for claims about training; null for one seed",
            "wide: more seeds are needed; five are the least for a claim",
        ),
        "episodes": Metric("episodes", "episodes that a rate was measured on", "fewer than some hundred"),
        "real_transitions_offline": Metric("steps", "real steps in the offline logs", "differs between rows of a table"),
        "real_transitions_online": Metric(
            "steps", "real steps taken to train the policy", "above 0 for a policy that was trained in the dream alone"
        ),
        "real_transitions_probe": Metric(
            "steps",
            "real steps of probes during training, and on development tasks where they chose the length of imitation",
            "large beside the training steps",
        ),
        "real_seconds": Metric(
            "s",
            "wall-clock time of waiting for the real environment, however many workers worked: logs that the run collected, training, and "
            "probes; not evaluation. Null where it was not measured: by remote workers, or before it was counted. Tables give hours",
            "near seconds: the real environment is what the run waits for",
        ),
        "dream_transitions": Metric("steps", "steps inside the experience model", "0 after a dream"),
        "seconds": Metric(
            "s",
            "training time of the policy and of what it was initialised from; in a line of metrics, since its phase began",
            "grows faster than the iterations",
        ),
        "cost_seconds": Metric(
            "s", "in a comparison: seconds, and the stated latency of every real step of training and probing", "above the real arm's"
        ),
        "relative_cost": Metric("ratio", "cost_seconds over those of the real arm of the same algorithm or run", "above 1"),
        "peak_rss_mb": Metric("MiB", "largest memory of the process", "near the machine's memory"),
    },
    "Fidelity of the dream": {
        "dream_success": Metric(
            "share",
            "sampled dreamed episodes that the dream, after the guard, ends with reward 1",
            "far above sampled real success; real_success is greedy",
        ),
        "gap": Metric(
            "share",
            "dream success minus real success of the same policy",
            "above 0.10, or growing: the policy exploits the experience model",
        ),
        "false_success": Metric(
            "share",
            "dreamed successes that are none in reality, among these and the dreamed failures that end in failure in reality",
            "above 0.05",
        ),
        "raw_false_success": Metric(
            "share", "the same by the experience model's own claim, before the guard", "high: the guard alone prevents false successes"
        ),
        "premature_failure": Metric(
            "share", "of dreams that end as a failure, those whose real episode goes on", "above 0.05: success in the dream is too low"
        ),
        "false_failure": Metric(
            "share", "of episodes that succeed in reality, those the dream calls a failure", "high: real successes are not rewarded"
        ),
        "masked_share": Metric(
            "share",
            "of the audit's dreams, those masked because model and rules contradict each other, or the dream contradicted itself",
            "above 0.03: no other rate counts them",
        ),
        "false_failure_at_most": Metric(
            "share",
            "of episodes that succeed in reality, masked ones included, those the dream does not call a success (worst case)",
            "far above false_failure: masking hides real successes",
        ),
        "consistency": Metric("share", "of dreamed successes, those that succeed in reality", "below 0.9"),
        "state_exact": Metric(
            "share", "next states equal to the real ones, up to and with the first that differs", "falls during training"
        ),
        "state_exact_valid": Metric("share", "the same, of actions that changed something in reality", "below 0.95"),
        "state_exact_invalid": Metric("share", "the same, of actions that changed nothing in reality", "below 0.99"),
        "state_exact_generated": Metric(
            "share", "the same, of actions that changed something and that no rule and no memory answered", "not above the control's"
        ),
        "decided_by": Metric(
            "shares",
            "what decided next states and rewards: a rule, a precedent, a mined condition, a composition of memories or the "
            "model; a reward, also a verifier that grants successes",
            "-",
        ),
        "in_support": Metric(
            "rates", "the audit's rates for dreams all of whose actions some real memory holds, and their share", "its share below a half"
        ),
        "out_of_support": Metric("rates", "the same for dreams with an action that no real memory holds", "far below in_support"),
        "reward_error": Metric("share", "mean absolute difference of dreamed and real reward a step, over the same steps", "above 0.01"),
        "transition_error": Metric("share", "next states that differ, over the same steps", "rises during training"),
        "differs": Metric(
            "share",
            "dreamed episodes that diverge from reality in state, reward or end, or that `experience.horizon` cuts: bounds the gap",
            "near 1: the bound is vacuous",
        ),
        "first_divergence": Metric("step", "mean step, from 1, of the first state that differs from the real one", "near 1"),
        "unreadable": Metric("answers", "answers of the experience model that could not be parsed", "more than a few"),
        "masked": Metric(
            "episodes",
            "dreams of the audit left out because model and rules contradict each other, or the dream contradicts itself",
            "many: see masked_share and false_failure_at_most",
        ),
        "real_steps": Metric("steps", "real steps of paired replay or of an evaluation; charged to no policy", "-"),
        "probe_real_success": Metric(
            "share", "success of real episodes during training, on the tasks of the last dreams", "constant while success rises"
        ),
        "probe_real_low": Metric("share", "lower bound of its 95 % interval", "-"),
        "probe_real_high": Metric("share", "upper bound of its 95 % interval", "-"),
        "probe_dream_success": Metric("share", "success in the dream on the same tasks", "far above probe_real_success"),
        "claims": Metric(
            "share",
            "of dreamed episodes, those that the experience model calls a success, before a verifier; with `grants`, also those that "
            "the verifier judged in its place",
            "near 1",
        ),
        "claims_accepted": Metric("share", "of them, those that the learned verifier accepts", "rises while tried_accepted_false does"),
        "claims_masked": Metric(
            "share", "of them, those that it leaves out, because they are unlike all logs or near its threshold", "most"
        ),
        "tried_accepted_false": Metric(
            "share",
            "of accepted claims that were tried in the real environment, those without a real success there",
            "above 0.5, by actions",
        ),
        "tried_real_success": Metric(
            "share", "of claims that were tried in the real environment, those with a real success there", "below the first, by rollouts"
        ),
        "probe_false_success": Metric(
            "share", "of probes that fail, those that the verifier accepted before it was fitted to them", "above 0.05"
        ),
        "probe_true_positive_rate": Metric("share", "of probes that succeed, those that it accepted", "below 0.8"),
        "probe_accepted_false": Metric("share", "of probes that it accepted, those that fail", "rises"),
        "probe_claims_true": Metric("share", "of all probes, those that succeed: what accepting everything would give", "-"),
        "probes": Metric("claims", "number of probes that the verifier is fitted to", "few: its threshold rests on the logs"),
        "verifier_threshold": Metric("score", "above which the verifier accepts a claim", "-"),
        "verifier_alpha": Metric("share", "of false claims that this threshold is made to accept at most", "-"),
        "refreshes": Metric("versions", "number of times that the experience model was fitted to probed episodes", "grows at every probe"),
    },
    "RL, per iteration": {
        "success": Metric(
            "share", "training episodes that end with reward 1, where they were collected: dream or real", "falls, or jumps to 1"
        ),
        "episode_length": Metric("steps", "mean length of a training episode", "at the horizon: nothing ends"),
        "truncated": Metric("share", "episodes cut off at the horizon, or where they outgrow the policy's context", "near 1"),
        "failed_rollouts": Metric(
            "episodes", "episodes with a technical failure, or masked; counted, never trained on", "above 0 in the real environment"
        ),
        "masked_share": Metric(
            "share",
            "rollouts left out because model and rules contradict each other, or the dream contradicts itself",
            "above 0.03: real successes are not rewarded; see false_failure_at_most",
        ),
        "groups_mixed": Metric("groups", "tasks whose rollouts differ in return: the only ones with a gradient", "0"),
        "mixed_fresh": Metric("share", "of tasks sampled for the first time, those whose returns differed", "-"),
        "mixed_replayed": Metric(
            "share", "the same of replayed tasks", "below mixed_fresh: measured values are out of date; lower curriculum.decay"
        ),
        "mixed_synthetic": Metric("share", "the same of synthetic tasks", "far below mixed_fresh: too easy, or impossible"),
        "groups_unsolved": Metric("groups", "tasks that no rollout solved", "nearly all: too hard"),
        "groups_solved": Metric("groups", "tasks that every rollout solved", "nearly all: too easy"),
        "groups_even": Metric("groups", "tasks with equal returns between 0 and 1", "many: partial rewards without variance"),
        "groups_single": Metric("groups", "tasks with fewer than two rollouts without failure", "above 0"),
        "iterations_without_reward": Metric(
            "iterations",
            "consecutive iterations, up to this one, in which no rollout was rewarded",
            "above 3: the tasks are too hard, or rewards are lost",
        ),
        "sequences": Metric("sequences", "token sequences trained on", "0: no gradient"),
        "tokens": Metric("tokens", "sampled tokens trained on", "0"),
        "entropy": Metric("nats/token", "entropy of the policy on trained tokens", "near 0 early, or rising steadily"),
        "grad_norm": Metric("norm", "mean norm of the gradient before clipping", "0, or spikes"),
        "clip_fraction": Metric("share", "trained tokens whose ratio was clipped", "above 0.2: steps too large"),
        "importance_weight": Metric(
            "ratio",
            "mean truncated importance weight of a trained token: the learner's probability over the sampler's",
            "far from 1",
        ),
        "value_loss": Metric("squared return", "half the clipped squared error of the critic's values", "rises"),
        "explained_variance": Metric(
            "share", "share of the variance of value targets that the critic explains", "at 0 or below after many iterations"
        ),
        "approx_kl": Metric("nats/token", "k3 estimate of the divergence from the policy that sampled", "above 0.1"),
        "kl": Metric(
            "nats/token",
            "estimate of the divergence from the reference policy, k3 by default",
            "grows steadily",
        ),
        "logprob_mismatch": Metric(
            "nats/token",
            "mean absolute difference of the sampler's and the learner's log-probabilities at the same weights",
            "above 0.05: precision, temperature or tokens differ",
        ),
        "refills": Metric("rounds", "times that further tasks were drawn because too few groups were mixed", "always at its limit"),
        "workers_replaced": Metric(
            "workers",
            "worker processes that died or timed out and were replaced, since the last iteration; of logs, while they were collected",
            "repeatedly above 0: the environment crashes, or memory runs out",
        ),
        "jobs_redone": Metric(
            "jobs",
            "jobs, each some episodes of a rollout, that lost Ray workers had and others did again, so far",
            "rises steadily: nodes come and go",
        ),
        "staleness": Metric(
            "versions",
            "how many updates older than the policy the weights are that sampled on workers: 0, or 1 with `async_rollouts`",
            "another value never happens: the run stops",
        ),
        "prefix_hit_rate": Metric(
            "share",
            "tokens of prompts that the vLLM servers of the policy found in their prefix caches since the last iteration, of all their "
            "clients",
            "below 0.5 in episodes of several turns: turns go to other servers than the first, or the cache is too small",
        ),
        "dream_prefix_hit_rate": Metric("share", "the same of the vLLM servers of the experience model", "below 0.5"),
        "dream_part_success": Metric("share", "success of the dreamed episodes of a mixed loop", "far above real_part_success"),
        "real_part_success": Metric("share", "success of the real episodes of a mixed loop", "constant while success rises"),
        "optimiser_steps": Metric("steps", "optimiser steps taken", "0"),
        "policy_version": Metric("number", "weights published so far", "constant"),
        "replay_added": Metric("transitions", "accepted transitions that were added to the replay buffer", "0 in a dream"),
        "synthetic_share": Metric("share", "rollouts on tasks that the experience model generated", "0 although lambda is above 0"),
        "out_of_support": Metric(
            "share", "generated steps whose action no real memory holds", "rises: the policy leaves the support of the logs"
        ),
        "tasks_proposed": Metric("tasks", "variations asked for", "0: no task had variance"),
        "tasks_accepted": Metric("tasks", "variations taken into the pool", "0"),
        "tasks_malformed": Metric("tasks", "refused: not an instruction of this environment", "most of the proposals"),
        "tasks_duplicate": Metric("tasks", "refused: already in the pool", "most of the proposals"),
        "tasks_held_out": Metric("tasks", "refused: a development or test task", "many: variation copies"),
        "tasks_impossible": Metric("tasks", "refused: nothing in real memory could satisfy it", "most of the proposals"),
        "tasks_unsupported": Metric(
            "tasks", "refused: not worded like real tasks, where no rule says what is feasible", "most of the proposals"
        ),
    },
    "Supervised training, per step": {
        "loss": Metric("nats/token", "weighted negative log-likelihood of a batch", "rises, or is not finite"),
        "loss_start": Metric("nats/token", "the same on the first state of an episode", "near 0: instructions determine the first state"),
        "loss_reasoning": Metric("nats/token", "on the reasoning trace", "stays above 1"),
        "loss_state": Metric("nats/token", "on the next state", "stays above 0.5"),
        "loss_reward": Metric("nats/token", "on reward and end", "stays near its first value"),
        "loss_task": Metric("nats/token", "on varied instructions", "near 0: instructions are copied"),
        "done": Metric("share", "of the phase's budget of epochs or seconds", "-"),
    },
    "Judge": {
        "judge_consistency": Metric(
            "0 to 2",
            "mean score of a language model's judgement: next state, reward and end follow from task, history, state and action; "
            "with a 95 % bootstrap interval, for dreamed, real and corrupted transitions apart",
            "dreamed transitions score like corrupted ones",
        ),
        "judge_diversity": Metric("0 to 2", "the same: the next state changes as the action implies", "below the real transitions'"),
        "judge_informativeness": Metric(
            "0 to 2", "the same: the next state holds what the agent needs for its next decision", "below the real transitions'"
        ),
        "judge_hallucination": Metric(
            "0 to 2", "the same: nothing is made up, and 2 is best; an action that cannot work fails", "below the real transitions'"
        ),
        "judge_difference": Metric(
            "0 to 2",
            "consistency and hallucination together, real minus corrupted transitions",
            "its interval contains 0: the judge does not tell real from corrupted transitions",
        ),
        "judge_above": Metric(
            "share", "chance that the judge puts a real transition above a corrupted one; ties count half", "below 0.8; 0.5 is guessing"
        ),
        "judge_relative": Metric(
            "share", "where the dream's scores lie between corrupted (0) and real (1); none when the controls fail", "below 0.8"
        ),
        "judge_spearman": Metric(
            "-1 to 1", "rank correlation of the judge with whether the environment would have done exactly that", "below 0.5"
        ),
        "judge_kappa": Metric(
            "-1 to 1",
            "agreement beyond chance of 'full marks in consistency and hallucination' with exactness in the environment",
            "below 0.5",
        ),
        "judge_retest": Metric(
            "share",
            "scores that are equal when the questions are asked in the opposite order",
            "below 0.8: the order of the questions decides",
        ),
        "judge_unreadable": Metric("replies", "transitions without scores, after asking twice", "more than a few"),
    },
}
