"""`dreamgym import` and `dreamgym export`: logs of agents in other formats."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli._show import Json, rate, table


def import_logs(
    logs: Annotated[list[Path], typer.Argument(help="Files of logs, JSON or JSON Lines.")],
    out: Annotated[Path | None, typer.Option(help="The file of episodes; their tools are written beside it, as NAME.tools.json.")] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="openai, openai_responses, sharegpt, anthropic, claude_code, otel, atif, tau2, verifiers, a dotted name, or auto.",
        ),
    ] = "auto",
    success: Annotated[
        list[str] | None, typer.Option(help="Where a record has its outcome: a field, or one comparison such as 'reward==1'.")
    ] = None,
    success_ids: Annotated[
        list[Path] | None, typer.Option(help="A file with the ids of successes, one a line; all others failed. Or a .csv: id, outcome.")
    ] = None,
    success_score: Annotated[list[str] | None, typer.Option(help="The name of an evaluation in the log, also with a comparison.")] = None,
    truncated: Annotated[
        list[str] | None,
        typer.Option(help="Where a record says that its episode was cut off, as for --success: 'stop_condition==max_turns_reached'."),
    ] = None,
    env: Annotated[str, typer.Option(help="The environment that the tasks are of.")] = "tools",
    system: Annotated[bool, typer.Option("--system", help="Open the instruction with the system text.")] = False,
    redact: Annotated[bool, typer.Option("--redact/--no-redact", help="Replace keys, tokens and e-mail addresses.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what was understood and what was left out; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Read the logs of a tool-calling agent as episodes. Outcomes come from where you say; without that they are unknown."""
    from dreamgym.errors import UsageError
    from dreamgym.logs.importing import import_logs as read_logs
    from dreamgym.logs.outcomes import once, outcomes, truncations

    if out is None and not dry_run:
        raise UsageError("Give --out FILE, such as --out episodes.jsonl, or --dry-run.")
    judged = outcomes(once(success, "--success"), once(success_ids, "--success-ids"), once(success_score, "--success-score"))
    found = read_logs(
        logs, None if dry_run else out, form=form, outcomes=judged, truncations=truncations(once(truncated, "--truncated")), env=env,
        system=system, redact=redact,
    )  # fmt: skip
    if as_json:
        print(json.dumps(found))
        return
    for path, name in found["formats"].items():
        print(f"{path}: {name}")
    counts = [["episodes", f"{found['episodes']:,}"], ["steps", f"{found['steps']:,}"]]
    counts += [[f"outcome: {name}", f"{n:,}"] for name, n in found["outcomes"].items()]
    counts += [["truncated", f"{found['truncated']:,}"]]
    counts += [[f"redacted: {name}", f"{n:,}"] for name, n in found["redacted"].items()]
    table("understood", ["what", "count"], counts)
    inferred = set(found["inferred_tools"])
    table(
        "tools", ["tool", "schema", "calls"], [[n, "inferred" if n in inferred else "given", f"{k:,}"] for n, k in found["tools"].items()]
    )
    for title in ("dropped", "notes"):
        if found[title]:
            rows = [[reason, f"{n:,}", "; ".join(found["places"][reason][:1])[:100]] for reason, n in found[title].items()]
            table(title, ["reason", "count", "for example"], rows)
    for warning in found["warnings"]:
        print(f"warning: {warning}")
    if out is not None and found["out"]:
        print(f"written: {out}, {found['tools_file']}")
        print(f"next: dreamgym init train.toml --logs {out}")


def export_logs(
    source: Annotated[Path, typer.Argument(help="A file of episodes, or a run directory (its logs).")],
    form: Annotated[str, typer.Option("--format", help="atif or openai.")],
    out: Annotated[Path, typer.Option(help="The JSON Lines file to write, an episode a line.")],
) -> None:
    """Write episodes as ATIF v1.8 trajectories or OpenAI messages, with the schemas of the tools that the agent had."""
    from dreamgym.errors import counted
    from dreamgym.logs.export import export_episodes

    tools = None
    if source.is_dir():
        from dreamgym.recipes.context import shared_config
        from dreamgym.recipes.factory import make_suite
        from dreamgym.runs.rundir import RunDir

        tools = make_suite(shared_config(RunDir.view(source))).rules.tools
    print(f"{counted(export_episodes(source, out, form, tools=tools), 'episode')}: {out}")


def mapping(
    logs: Annotated[list[Path], typer.Argument(help="Files of episodes, as `dreamgym import` or a run writes them.")],
    out: Annotated[Path | None, typer.Option(help="The file of the mapping that is fitted.")] = None,
    mapper: Annotated[Path | None, typer.Option(help="Use this mapping, and fit none.")] = None,
    mapped: Annotated[Path | None, typer.Option(help="Write the episodes in the states of the mapping.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a state mapping, which leaves out lines of long states, to recorded episodes, and say what it saves and loses on others."""
    from dreamgym.envs import mapping as states
    from dreamgym.errors import UsageError
    from dreamgym.evals.mapping_loss import measure
    from dreamgym.experience.mappers import fitted
    from dreamgym.runs.episodes import read_trajectories, write_trajectories

    if (out is None) == (mapper is None):
        raise UsageError("Give --out FILE to fit a mapping, or --mapper FILE to use one.")
    episodes = [episode for file in logs for episode in read_trajectories(file)]
    if mapper is not None:
        chosen, judged = fitted.make(file=mapper), episodes
    else:
        learned, judged = fitted.split_by_instruction(episodes)
        chosen = fitted.fit(learned)
    found = measure(chosen, judged)
    if out is not None:
        chosen.save(out)
    if mapped is not None:
        write_trajectories(mapped, [states.mapped(chosen, episode) for episode in episodes])
    values = asdict(found)
    if as_json:
        print(json.dumps(values))
        return
    rows = [
        ["episodes, states", f"{found.episodes:,}, {found.states:,}"],
        ["tokens of a state, before and after", f"{found.tokens_before:,.0f}, {found.tokens_after:,.0f}"],
        ["steps of successes whose action is still shown", rate(values["actions_kept"])],
        ["(state, action) pairs with several outcomes, before", rate(values["ambiguous_before"])],
        ["the same, after", rate(values["ambiguous_after"])],
    ]
    table("state mapping" + ("" if mapper else ", on episodes that it was not fitted to"), ["what", "value"], rows)
    for file in (out, mapped):
        if file is not None:
            print(f"written: {file}")
