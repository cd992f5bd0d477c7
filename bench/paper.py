"""The arms of the paper's tables with a pretrained policy and experience model, one arm of one seed at a time.

    python bench/paper.py --prepare DIR [--name smollm2]       # with a network: the model in pieces of at most 60 MiB
    python bench/paper.py --model DIR --data DIR [--seeds 0 1 2] [--arms sft grpo-dream grpo-real] [--minutes 25] [--device cuda]
    python bench/paper.py --join A.json B.json                 # the rows of processes side by side, one a seed, each with its --out

For a machine with a GPU that is at hand for half an hour and reaches no package index. DIR of --data holds the run directories, one a seed:
the same command goes on where the last one ended. A step is a seed's logs, experience model and warm start, or one of its arms; none is
begun when less than `--step-minutes` of `--minutes` are left. After each, its row joins the table `--out`, by default paper.json in the
current folder; from the tables in docs/results `make results` writes the page. Settings: the preset compare-smollm2, or `--config`. Each
row names the commit at which its run directory was begun, and a digest of the settings and the model: one table has one of each.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import options as cli

from dreamgym.config import assignments, read
from dreamgym.errors import UsageError
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes import compare, context, factory, tables
from dreamgym.recipes.arms import arm_of
from dreamgym.recipes.config import CompareConfig
from dreamgym.runs.files import dumps, read_json, write_atomic
from dreamgym.runs.rundir import RunDir

PIECE = "55MB"  # of a model's weights; 60 MiB is the most that may travel as one file
COLUMNS = {
    "arm": "arm", "seed": "seed", "real_success": "greedy success, %", "sampled": "sampled success, %", "tokens": "tokens trained on",
    "seconds": "seconds", "device": "device", "settings": "digest of the settings", "commit": "commit",
}  # fmt: skip
MADE = "paper.json"  # in a run directory: the commit at which it was begun, and the device of each arm
PLACES: dict[str, Any] = {"seed": True, "seeds": True, "arms": True, "ablations": True, "ablated": True, "exec": True, "env": {"workers"}}
"""Settings that name a row or say where it is made, and do not change what it is a row of."""
LOOP = {"iterations": 1, "tasks_per_iter": 2, "group_size": 2, "train_tasks": 7}
FIT = {"epochs": 0.3, "batch_tokens": 512}
SMOKE = {
    "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
    "logs": {"trajectories": 40, "task_pairs": 10},
    "model": {"size": "100k", "vocab_size": 512},
    "policy.instructions": "Such as Action: left.",
    "policy.max_reply_tokens": 8,
    "experience.max_answer_tokens": 24,
    **{f"{fit}.{key}": value for fit in ("experience.training", "warm_start", "sft") for key, value in FIT.items()},
    **{f"{loop}.{key}": value for loop in ("dream", "real") for key, value in LOOP.items()},
    "eval": {"tasks": 3, "dev_tasks": 3, "paired_replays": 0},
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prepare(folder: Path, name: str) -> Path:
    """Write the model into pieces that travel: bfloat16, and no file above 60 MiB. UsageError where one would be."""
    model, tokenizer = backbones.load(BackboneConfig(model=name, device="cpu", dtype="bfloat16"))
    model.save_pretrained(folder, max_shard_size=PIECE)
    tokenizer.save_pretrained(folder)
    if large := [file.name for file in folder.iterdir() if file.stat().st_size > 60 * 2**20]:
        raise UsageError(f"{', '.join(large)} in '{folder}' would be above 60 MiB. Use a model whose largest weight is smaller.")
    return folder


def settings(model: Path, device: str, file: Path | None, changes: dict[str, Any]) -> CompareConfig:
    """The configuration of all steps: a file's or the preset's, with the model of that folder in both roles and these settings changed."""
    both = {
        f"{role}.backbone.{key}": value for role in ("policy", "experience") for key, value in (("model", str(model)), ("device", device))
    }
    return read(CompareConfig, file or Path("compare-smollm2"), both | changes)


def only(arm: str) -> dict[str, Any]:
    """The settings of a comparison that trains that arm alone, or the warm start alone."""
    policy, _, part = arm.partition("-no-")
    return {"arms": () if arm == "warm_start" else (policy,)} | ({"ablations": (part,), "ablated": policy} if part else {"ablations": ()})


def step(config: CompareConfig, data: Path, seed: int, arm: str) -> dict[str, Any]:
    """The row of one arm of one seed, after what was missing of it."""
    one = config.model_copy(update={"seed": seed, **only(arm)})
    stored = config.model_copy(update={"seed": seed, "seeds": (seed,), "arms": (), "ablations": ()})
    made = made_by(data / f"seed-{seed}")
    with context.open_run(data / f"seed-{seed}", stored) as run, factory.start_workers(one.effective_env) as workers:
        run.write_atomic(MADE, dumps(made) + "\n")
        compare.train_arms(run, one, lambda text: print(text, flush=True), workers)
        found = tables.entry(run, arm, arm_of(arm))
        if found is None:
            raise UsageError(f"'{run.path}' has no evaluation of '{arm}'. Set eval.tasks above 0.")
        made["devices"].setdefault(arm, device_name(config))
        run.write_atomic(MADE, dumps(made) + "\n")
        return {
            "arm": arm,
            "seed": seed,
            "real_success": round(100 * found["real_success"], 1),
            "sampled": round(100 * found["sampled"]["value"], 1),
            "tokens": tokens(run, arm),
            "seconds": round(run.data(arm)["seconds"], 1),
            "device": made["devices"][arm],
            "settings": digest(config),
            "commit": made["commit"],
        }


def digest(config: CompareConfig) -> str:
    """Of all that two rows of one arm and seed must share to be one measurement: the settings, and the files of the models."""
    settings = config.model_dump(mode="json", exclude=PLACES)
    for block in (settings["policy"], settings["experience"]):
        if backbone := block.get("backbone"):
            backbone |= {"model": _files(backbone["model"]), "device": ""}
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4).hexdigest()


@functools.cache
def _files(model: str) -> str:
    """The names and bytes of a model's files, in short; the name of a model that is no folder."""
    if not Path(model).is_dir():
        return model
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(one for one in Path(model).iterdir() if one.is_file()):
        with file.open("rb") as data:
            found.update(file.name.encode() + hashlib.file_digest(data, "blake2b").digest())
    return found.hexdigest()


def made_by(folder: Path) -> dict[str, Any]:
    """The commit at which a run directory was begun, and the device of each of its arms. Of one that is not there yet the commit is the
    present one, of one without a note it is "unknown"."""
    return read_json(folder / MADE) or {"commit": "unknown" if folder.is_dir() else context.commit(), "devices": {}}


def tokens(run: RunDir, arm: str) -> int:
    """Tokens that the phase of an arm was trained on: of the rows of a fit, of the rollouts of a loop."""
    data = run.data(arm)
    if "iterations" not in data:
        return int(data.get("tokens", 0))
    return int(sum(line.get("tokens") or 0 for line in run.read_jsonl("metrics.jsonl") if line["phase"] == arm))


def device_name(config: CompareConfig) -> str:
    backbone = config.policy.backbone
    where = backbones.device(backbone.device if backbone else "cpu")
    return torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def merged(file: Path, row: dict[str, Any], config: CompareConfig, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Put a row into the table at `file`, in place of an older one of the same arm, seed and device, and write it. `changes` are the
    options that say with which settings. UsageError where the table is of other settings, or of another commit."""
    note = f"Environment: {config.env.name}. Policies with fewer than five seeds carry no claim."
    return _written(file, [_header(row["commit"], changes) | {"rows": [row], "notes": [note]}])


def join(file: Path, others: Sequence[Path]) -> dict[str, Any]:
    """Put the rows of other tables into the one at `file`; a new one has the header of the last of them. UsageError for one without rows,
    and where they are of other settings or commits."""
    tables = [read_json(other) or {} for other in others]
    if wrong := next((other for other, table in zip(others, tables, strict=True) if not table.get("rows")), None):
        raise UsageError(f"'{wrong}' has no rows. Give files that this program wrote with --out.")
    return _written(file, tables)


def _header(commit: str, changes: Sequence[str]) -> dict[str, Any]:
    """How a new table is shown, and what made it. `changes` are its further options."""
    given = f" {shlex.join(changes)}" if changes else ""
    return {
        "order": 40,
        "section": "Pretrained models",
        "title": "A pretrained model in both roles, arm by arm",
        "text": "Success on held-out tasks in the real environment. One row a seed and arm.",
        "command": f"bench/paper.py --model DIR --data DIR{given}",
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }


def _written(file: Path, tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table at `file` with the rows of others, written. What a person wrote around its rows stays, but for claims, which were about
    the rows before."""
    before = read_json(file) or {}
    _require_alike([before, *tables], file)
    rows, kept = before.get("rows", []), before or tables[-1]
    for row in (row for table in tables for row in table["rows"]):
        rows = _with_row(rows, row)
    if rows == before.get("rows"):
        return before
    if kept.get("claims"):
        print(f"'{file}' has other rows now: its claims are left out. Make them again: {', '.join(one['what'] for one in kept['claims'])}")
    devices = [list(dict.fromkeys(one["device"] for one in some)) for some in (rows, before.get("rows", []))]
    found = {
        "name": file.stem,
        **{key: kept[key] for key in ("order", "section", "title", "text", "command", "commit")},
        "date": max(table["date"] for table in (before, *tables) if table),
        "machine": before["machine"] if devices[0] == devices[1] else ", ".join(devices[0]),
        "seeds": sorted({one["seed"] for one in rows}),
        "hours": round(sum(one["seconds"] for one in rows) / 3600, 2),
        "columns": kept.get("columns", COLUMNS),
        "rows": rows,
        "claims": [],
        "notes": kept["notes"],
    }
    write_atomic(file, dumps(found) + "\n")
    return found


def _require_alike(tables: Sequence[dict[str, Any]], file: Path) -> None:
    """UsageError for rows of other settings or of another commit than the first: one table has one of each."""
    for key in ("settings", "commit"):
        noted = "command" if key == "settings" else key  # of tables whose rows name neither
        made = {row.get(key, table[noted]): table["command"] for table in tables for row in table.get("rows", [])}
        if len(made) > 1:
            (one, first), (other, second), *_ = made.items()
            hidden = " What differs is in the file of --config, the preset or the model." if key == "settings" and first == second else ""
            raise UsageError(
                f"Rows of {key} {one}, made by '{first}', and of {key} {other}, made by '{second}', do not go into one table, '{file}'."
                f"{hidden} Give --out another file."
            )


def _require_present(folder: Path) -> None:
    """UsageError for a run directory that was begun at another commit: its rows would be of both."""
    if (begun := made_by(folder)["commit"]) not in ("unknown", here := context.commit()):
        raise UsageError(f"'{folder}' was begun at commit {begun}, and this is {here}. Go on at {begun}, or give --data another folder.")


def _with_row(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with one more, in place of that of the same arm, seed and device."""
    kept = [one for one in rows if any(one[key] != row[key] for key in ("arm", "seed", "device"))]
    return sorted([*kept, row], key=lambda one: (one["arm"], one["seed"], one["device"]))


def play(
    config: CompareConfig,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    arms: Sequence[str],
    minutes: float,
    of_step: float = 10.0,
    changes: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """All steps that fit into the minutes, the shared one of a seed before its arms; the rows that were made or found. A step may take
    `of_step` minutes."""
    begun, rows = time.monotonic(), list[dict[str, Any]]()
    for seed in seeds:
        for arm in ("warm_start", *arms):
            folder = data / f"seed-{seed}"
            left = minutes - (time.monotonic() - begun) / 60
            ready = folder.is_dir() and RunDir.view(folder).done(f"eval-{arm}")
            if left < of_step and not ready:
                print(f"{left:.1f} minutes are left, and a step may take {of_step:g}: the same command goes on with seed {seed}, {arm}")
                return rows
            if not ready:  # before minutes are spent
                _require_present(folder)
                commit = made_by(folder)["commit"]
                wanted = _header(commit, changes) | {"rows": [{"settings": digest(config), "commit": commit}]}
                _require_alike([read_json(out) or {}, wanted], out)
            start = time.monotonic()
            rows.append(step(config, data, seed, arm))
            merged(out, rows[-1], config, changes)
            print(f"seed {seed}, {arm}: {rows[-1]['real_success']} % greedy, {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    return rows


def tiny_instruct_model(folder: Path) -> Path:
    """A model of random weights with a chat template, for the smoke size."""
    tokenizer = tiny.train_tokenizer(["go left, go right, open the door"], vocab_size=300, special=["<|im_start|>"])
    tokenizer.chat_template = TEMPLATE
    return backbones.save(tiny.build(tokenizer, "100k"), tokenizer, folder)


def main() -> None:
    parser = cli.parser(__doc__, full="all seeds of the preset", smoke="a model of random weights in the corridor, one seed")
    parser.add_argument("--prepare", type=Path, help="write the model's pieces into this folder, and stop")
    parser.add_argument("--name", default="smollm2", help="with --prepare: a packaged model, or one that the hub's cache holds")
    parser.add_argument("--model", type=Path, help="the folder that --prepare wrote, or of any causal LM with a chat template")
    parser.add_argument("--data", type=Path, help="the folder of the run directories")
    parser.add_argument("--config", type=Path, help="another configuration of `dreamgym compare`")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: the first of the preset; with --full all of them")
    parser.add_argument("--arms", nargs="*", help="default: those of the preset; grpo-dream-no-guard and its like are ablations")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="change settings, such as rules=none")
    parser.add_argument("--minutes", type=float, default=25.0, help="how long the machine is at hand")
    parser.add_argument("--step-minutes", type=float, default=10.0, help="how long a step may take")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="add the rows of these --out files to --out, and stop")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("paper.json"), help="the table that rows join")
    options = parser.parse_args()
    context.silence_progress_bars()
    if options.prepare:
        print(prepare(options.prepare, options.name))
        return cli.finish(options, {"prepared": str(options.prepare)})
    if options.join:
        return cli.finish(options, {"rows": join(options.out, options.join)["rows"]})
    with tempfile.TemporaryDirectory() as scratch:
        if options.smoke:
            place = Path(scratch)
            options.model, options.data, options.device = tiny_instruct_model(place / "model"), place / "data", "cpu"
            options.out, options.arms = place / "paper-smoke.json", options.arms or ["grpo-dream"]
        if not options.model or not options.data:
            print("Nothing to run without --model DIR and --data DIR. --smoke tests the program; --prepare DIR writes a model's pieces.")
            return cli.finish(options, {"skipped": "no --model and --data", "rows": []})
        changes = (SMOKE if options.smoke else {}) | assignments(options.set)
        config = settings(options.model, options.device, options.config, changes)
        arms = config.arms if options.arms is None else options.arms
        for arm in arms:  # a name that is none is refused before minutes are spent
            settings(options.model, options.device, options.config, changes | only(arm))
        given = [*(["--config", options.config.name] if options.config else []), *(["--set", *options.set] if options.set else [])]
        factory.checked_suite(config)
        seeds = options.seeds or (config.seeds if options.full else config.seeds[:1])
        rows = play(config, options.data, options.out, seeds, arms, options.minutes, options.step_minutes, given)
        cli.finish(options, {"device": device_name(config), "rows": rows})


if __name__ == "__main__":
    main()
