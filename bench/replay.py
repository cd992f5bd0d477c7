"""The replay buffer beside NumPy, faiss and LanceDB: search, appends, opening, memory, and what its encoders find.

    python bench/replay.py [--json] [--full | --smoke] [--rows 10000 3000000] [--experience runs/quickstart/checkpoints/experience]

Rows are 384 float16 numbers around a few thousand directions, in trajectories of eight, a fifth of them real; queries are rows
with noise. Times of searches are processor milliseconds of all threads (other work on the machine does not count), the best of a few. The
floor is a bare product and top-k of the same size, in bfloat16 where this processor computes in it and in float32 where it does not.
recall@8 is against a float64 product over the rows that pass the filter; a neighbour counts when its cosine is one of the best eight to
five decimals. Appends are batches of 64 with text, metadata and vector; the log flushes each to the disk, LanceDB leaves that to the
system.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import options as cli
from common.isolation import cpu_ms, isolated

from dreamgym import plugins
from dreamgym.errors import MissingExtra
from dreamgym.recipes import factory
from dreamgym.recipes.context import silence_progress_bars
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.indexes import exact
from dreamgym.replay.stores import Entry, sqlite
from dreamgym.types import Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

DIM, K, STEPS, BATCH = 384, 8, 8, 64
ENVS: tuple[str, ...] = ("shop", "house", "web", "desk")


@dataclass(frozen=True)
class Data:
    """Rows of a log: vectors [N, DIM] in float16, as a log keeps them, and a column [N] for each thing that can be filtered."""

    vectors: np.ndarray
    queries: np.ndarray  # [512, DIM]
    own: np.ndarray  # [512], trajectory of the row that each query was made from
    trajectory: np.ndarray
    env: np.ndarray
    dream: np.ndarray
    reward: np.ndarray

    @classmethod
    def make(cls, rows: int) -> Data:
        """The same for the same number of rows."""
        random = np.random.default_rng(rows)
        centres = random.standard_normal((max(16, rows // 32), DIM), np.float32)
        vectors = np.empty((rows, DIM), np.float16)
        for start in range(0, rows, 50_000):
            n = min(50_000, rows - start)
            vectors[start : start + n] = _unit(centres[random.integers(0, len(centres), n)] + random.standard_normal((n, DIM), np.float32))
        origin = random.integers(0, rows, 512)
        queries = _unit(vectors[origin] + 0.02 * random.standard_normal((512, DIM), np.float32))
        trajectory = np.arange(rows) // STEPS
        groups = trajectory[-1] + 1
        env, dream = random.integers(0, len(ENVS), groups)[trajectory], (random.random(groups) < 0.8)[trajectory]
        reward = (random.random(rows) < 0.1).astype(np.float64)
        return cls(vectors, queries, trajectory[origin], trajectory, env, dream, reward)

    def cases(self) -> dict[str, tuple[np.ndarray | None, bool]]:
        """Name -> (mask of rows, whether queries do not see their own trajectory)."""
        shop = self.env == 0
        return {
            "none": (None, False),
            "own": (None, True),
            "env": (shop, False),
            "env+real+own": (shop & ~self.dream, True),
            "reward": (self.reward > 0.5, False),
            "dream+own": (self.dream, True),
        }

    def entries(self, start: int, stop: int) -> list[Entry]:
        """The rows from `start` to `stop`, a multiple of STEPS, as trajectories to log."""
        found = []
        for first in range(start, stop, STEPS):
            last = min(first + STEPS, stop)
            source: Source = "dream" if self.dream[first] else "real"
            turns = tuple(_turn(i, float(self.reward[i]), Verdict("passed") if source == "dream" else None) for i in range(first, last))
            task = Task(f"task-{first}", f"find the red mug number {first % 999} for less than 20 dollars", ENVS[self.env[first]])
            trajectory = Trajectory(f"trajectory-{self.trajectory[first]}", task, source, turns, True)
            found.append(Entry(trajectory, tuple(range(last - first)), self.vectors[first:last]))
        return found


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return unit


def _turn(i: int, reward: float, verdict: Verdict | None) -> Turn:
    page = f"Results for red mug, page {i}\n" + "\n".join(f"[b{(i * 7 + j) % 5000:04}] mug, red, {(i + j) % 40}.50" for j in range(6))
    after = f"Item b{i % 5000:04}\nmug, red, {i % 40}.50\n[buy now] [back]"
    return Turn(
        Transition(
            Observation(page), f"click[b{i % 5000:04}]", Observation(after), reward, False, StepInfo("the item opens", verdict=verdict)
        )
    )


def ours(data: Data) -> dict[str, Any]:
    """The exact index: processor time and recall in every case."""
    index = exact.make(dim=DIM, capacity=len(data.vectors))
    index.add(data.vectors, data.trajectory)
    found: dict[str, Any] = {"cpu_ms": {}, "recall": {}}
    for name, (mask, own) in data.cases().items():
        for n in (64, 512):
            queries, exclude = data.queries[:n], data.own[:n] if own else None
            run = lambda q=queries, m=mask, e=exclude: index.search(q, k=K, mask=m, exclude=e)  # noqa: E731
            found["cpu_ms"][f"{name}/{n}"] = cpu_ms(run)
        positions, _ = index.search(data.queries[:64], k=K, mask=mask, exclude=data.own[:64] if own else None)
        found["recall"][name] = recall(data, positions, mask, own)
    found["two_passes"] = index._coarse is not None
    return found


def recall(data: Data, positions: np.ndarray, mask: np.ndarray | None, own: bool) -> float:
    """Share of `positions` [Q, K] that are allowed and as near as the true best K."""
    hits = total = 0
    allowed = np.ones(len(data.vectors), bool) if mask is None else mask
    for start in range(0, len(positions), 8):
        queries = data.queries[start : start + 8].astype(np.float64)
        cosines = np.concatenate(
            [queries @ part.T.astype(np.float64) for part in np.array_split(data.vectors, 1 + len(data.vectors) // 50_000)], 1
        )
        for offset, scores in enumerate(cosines):
            scores[~allowed] = -np.inf
            if own:
                scores[data.trajectory == data.own[start + offset]] = -np.inf
            best = np.sort(np.partition(scores, -K)[-K:]) if len(scores) > K else np.sort(scores)
            best = best[best > -np.inf]
            chosen = positions[start + offset]
            chosen = chosen[chosen >= 0]
            hits += int((scores[chosen] >= best[0] - 1e-5).sum()) if len(best) and len(set(chosen)) == len(chosen) else 0
            total += len(best)
    return hits / max(1, total)


def floor(data: Data) -> dict[str, Any]:
    """A bare product and top-k."""
    import torch

    kind = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    rows, found = torch.from_numpy(data.vectors).to(kind), {}

    def nearest(queries: Any) -> Any:
        return (queries @ rows.T).topk(min(K, len(rows)))

    with torch.inference_mode():
        for n in (64, 512):
            queries = torch.from_numpy(data.queries[:n]).to(kind)
            found[f"none/{n}"] = cpu_ms(partial(nearest, queries))
    return {"cpu_ms": found, "dtype": str(kind).removeprefix("torch.")}


def numpy_flat(data: Data) -> dict[str, Any]:
    """A float32 product and argpartition."""

    rows = data.vectors.astype(np.float32)

    def search(queries: np.ndarray) -> np.ndarray:
        scores = queries @ rows.T
        best = np.argpartition(scores, -K, axis=1)[:, -K:]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)

    return {"cpu_ms": {"none/64": cpu_ms(lambda: search(data.queries[:64]), repeats=3)}}


def faiss_flat(data: Data) -> dict[str, Any]:
    import faiss

    index = faiss.IndexFlatIP(DIM)
    for part in np.array_split(data.vectors, 1 + len(data.vectors) // 50_000):
        index.add(part.astype(np.float32))
    return {"cpu_ms": {f"none/{n}": cpu_ms(partial(index.search, data.queries[:n], K), repeats=3) for n in (64, 512)}}


def lance(data: Data, appends: int) -> dict[str, Any]:
    """LanceDB in a local folder: appends of 64, then one search a query without an index."""
    import lancedb
    import pyarrow

    def table_of(entries: Sequence[Entry]) -> Any:
        rows = [
            {
                "trajectory": e.trajectory.id, "env": e.trajectory.task.env, "source": e.trajectory.source, "step": step,
                "instruction": e.trajectory.task.instruction, "state": t.state.text, "action": t.action, "next_state": t.next_state.text,
                "reward": t.reward, "reasoning": t.info.reasoning,
            }
            for e in entries for step, t in enumerate(e.trajectory.transitions)
        ]  # fmt: skip
        vectors = np.concatenate([entry.vectors for entry in entries]).astype(np.float32).reshape(-1)
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors), DIM)
        return pyarrow.Table.from_pylist(rows).append_column("vector", column)

    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("log", table_of(data.entries(0, BATCH)))
        found = {"append_rows_per_s": rate(lambda entries: table.add(table_of(entries)), batches(data, appends))}
        rest = range(BATCH * (appends + 1), len(data.vectors), 20_000)
        for start in rest:
            table.add(table_of(data.entries(start, min(start + 20_000, len(data.vectors)))))
        table.optimize()

        def search() -> None:
            for query in data.queries[:BATCH]:
                table.search(query).distance_type("cosine").limit(K).select(["trajectory", "_distance"]).to_arrow()

        return found | {"cpu_ms": {"none/64": cpu_ms(search, repeats=2)}}


def appends_of_ours(data: Data, appends: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = sqlite.make(path=Path(folder) / "log.sqlite", encoder="bench", dim=DIM)
        store.append(data.entries(0, BATCH))
        return {"append_rows_per_s": rate(store.append, batches(data, appends))}


def batches(data: Data, appends: int) -> Iterator[list[Entry]]:
    """Batches of 64 rows after the first."""
    for i in range(1, appends + 1):
        yield data.entries(i * BATCH % len(data.vectors), i * BATCH % len(data.vectors) + BATCH)


def rate(append: Callable[[list[Entry]], Any], context: Iterator[list[Entry]]) -> float:
    """Rows a second, in the time that passes: an append waits for the disk. Making the batches is not counted."""
    made = list(context)
    start = time.perf_counter()
    for entries in made:
        append(entries)
    return BATCH * len(made) / (time.perf_counter() - start)


class _Stub:
    """Stands for the encoder of a log that is opened and not searched."""

    id, dim = "bench", DIM

    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        raise AssertionError("opening a log must not encode anything")


def write_log(data: Data, path: Path) -> dict[str, Any]:
    """All rows as a log."""
    store = sqlite.make(path=path, encoder="bench", dim=DIM)
    for start in range(0, len(data.vectors), 4096):
        store.append(data.entries(start, min(start + 4096, len(data.vectors))))
    store.close()
    return {"bytes": path.stat().st_size}


def open_log(path: Path) -> dict[str, Any]:
    """Seconds to a buffer that can search, those of the processor, and its memory against what it holds: float32 vectors, distinct texts,
    columns."""
    import torch  # noqa: F401  # its own memory is not the buffer's

    before, start, cpu = resident_mb(), time.perf_counter(), time.process_time()
    buffer = ReplayBuffer.open(path, _Stub())
    seconds, cpu_seconds, grown = time.perf_counter() - start, time.process_time() - cpu, resident_mb() - before
    texts = {text for m in buffer.memories() for text in (m.state, m.action, m.next_state, m.instruction, m.trajectory, m.reasoning)}
    held = (len(buffer) * (DIM * 4 + 16 * 8) + sum(map(sys.getsizeof, texts))) / 2**20
    return {"open_seconds": seconds, "open_cpu_seconds": cpu_seconds, "memory_mb": grown, "memory_ratio": grown / held}


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def quality(suite: str, encoder: str, base: int, queries: int, experience: Path | None = None) -> dict[str, Any]:
    """Share of the top 8 that have the query's page kind and action kind, on logged transitions of an environment."""
    from dreamgym.logs.demonstrations import collect

    try:
        hidden = {"checkpoint": str(experience)} if encoder == "hidden" else {}
        made, phi = plugins.make("envs", suite), factory.encoder({"name": encoder} | hidden)
        logs = collect(made, max(20, (base + queries) // 4), seed=0)
    except MissingExtra as error:
        return {"missing": str(error)}
    pairs = [(t.state.text, t.action) for one in logs for t in one.transitions]
    chosen = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[: base + queries]]
    kinds = [kind(*pair) for pair in chosen]
    vectors = phi.encode([state for state, _ in chosen], [action for _, action in chosen])
    index = exact.make(dim=phi.dim)
    index.add(vectors[queries:], np.arange(len(vectors) - queries))
    positions, _ = index.search(vectors[:queries], k=K)
    same = [[kinds[queries + p] == kinds[q] for p in row if p >= 0] for q, row in enumerate(positions)]
    counts, total = Counter(kinds[queries:]), len(kinds) - queries
    chance = float(np.mean([counts[one] / total for one in kinds[:queries]]))
    return {"same_kind": float(np.mean([hit for row in same for hit in row])), "chance": chance, "rows": total}


def kind(state: str, action: str) -> tuple[str, str]:
    """In a house, the kind of place ("at open microwave") and the verb; elsewhere a page's first word, and the action's verb with what it
    names: an id, a button or words."""
    head, bracket, rest = action.partition("[")
    if not bracket:
        place = state.splitlines()[0].partition(":")[0]
        return "".join(c for c in place if not c.isdigit()).strip(), action.split()[0]
    button = "id" if any(c.isdigit() for c in rest) else rest.rstrip("]")
    return state.split(maxsplit=1)[0], head if head == "search" else f"{head}[{button}"


def measure(rows: int, appends: int) -> dict[str, Any]:
    """Everything about one size."""
    data = Data.make(rows)
    mine, bare, plain, faiss_ = (isolated(function, data) for function in (ours, floor, numpy_flat, faiss_flat))
    log, peer = isolated(appends_of_ours, data, appends), isolated(lance, data, appends)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite"
        size = isolated(write_log, data, path)
        del data  # three million rows and the buffer beside them would not fit a laptop
        opened = isolated(open_log, path)

    def ratio(other: dict[str, Any], case: str = "none/64") -> float | None:
        return other["cpu_ms"][case] / mine["cpu_ms"][case] if "cpu_ms" in other else None

    return {
        "rows": rows,
        "recall_at_8": min(mine["recall"].values()),
        "cpu_ms_64": mine["cpu_ms"]["none/64"],
        "ratio_vs_faiss_flat": ratio(faiss_),
        "ratio_vs_numpy": ratio(plain),
        "ratio_vs_floor": ratio(bare),
        "ratio_vs_lancedb": ratio(peer),
        "floor_dtype": bare["dtype"],
        "append_rows_per_s": log["append_rows_per_s"],
        "append_ratio_vs_lancedb": log["append_rows_per_s"] / peer["append_rows_per_s"] if "append_rows_per_s" in peer else None,
        "open_seconds": opened["open_seconds"],
        "open_cpu_seconds": opened["open_cpu_seconds"],
        "memory_ratio": opened["memory_ratio"],
        "bytes_per_row": size["bytes"] / rows,
        "recall": mine["recall"],
        "cpu_ms": {name: one.get("cpu_ms", one) for name, one in
                   (("ours", mine), ("floor", bare), ("numpy", plain), ("faiss_flat", faiss_), ("lancedb", peer))},
        "two_passes": mine["two_passes"],
    }  # fmt: skip


def main() -> None:
    full = "10k, 100k and 1M rows, and encoders on 5,600 transitions"
    parser = cli.parser(__doc__, full=full, smoke="1,000 rows, and encoders on 60 transitions")
    parser.add_argument("--rows", nargs="*", type=int, help="sizes to measure (default: 100000)")
    parser.add_argument("--experience", type=Path, help="checkpoint of an experience model, whose hidden states are an encoder too")
    options = parser.parse_args()
    silence_progress_bars()
    sizes = options.rows or ([100_000, 10_000, 1_000_000] if options.full else [1_000] if options.smoke else [100_000])
    base, queries = (5600, 400) if options.full else (40, 20) if options.smoke else (400, 100)
    found = [measure(rows, min(200 if options.full else 50, rows // BATCH - 1)) for rows in sizes]
    suites = ("webshop", "alfworld")
    names = ("lexical", "minilm", *(["hidden"] if options.experience else []))
    encoders = {f: {e: isolated(quality, f, e, base, queries, options.experience) for e in names} for f in suites}
    for one in found:
        show(one)
    for suite, rows in encoders.items():
        for encoder, one in rows.items():
            print(
                f"  {suite}, {encoder}: "
                + (
                    one.get("missing")
                    or f"{one['same_kind']:.3f} of the top 8 have the page kind and action kind (by chance {one['chance']:.3f})"
                )
            )
    cli.finish(options, found[0] | {"encoders": encoders, "sizes": found})


def show(one: dict[str, Any]) -> None:
    """The table for a person."""
    print(f"{one['rows']:,} rows of {DIM}, top {K}; floor in {one['floor_dtype']}, {'two passes' if one['two_passes'] else 'one pass'}")
    for name, times in one["cpu_ms"].items():
        text = times.get("missing") or "  ".join(f"{case} {ms:,.1f}" for case, ms in times.items())
        print(f"  {name:<10} cpu-ms  {text}")
    keys = ("recall_at_8", "ratio_vs_faiss_flat", "ratio_vs_numpy", "ratio_vs_floor", "ratio_vs_lancedb", "append_rows_per_s",
            "append_ratio_vs_lancedb", "open_seconds", "open_cpu_seconds", "memory_ratio", "bytes_per_row")  # fmt: skip
    print("  " + "  ".join(f"{key}={one[key]:.4g}" if one[key] is not None else f"{key}=null" for key in keys))


if __name__ == "__main__":
    main()
