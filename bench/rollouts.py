"""What waiting for the slowest costs: rollouts of a policy behind a slow server, in lockstep and without.

    python bench/rollouts.py [--json] [--full | --smoke]

The server is a process of its own on a free port of this machine, speaks vLLM's API over HTTP, and answers every request after a random
time (log-normal, as generation times are: a median of 100 ms, and one in a hundred above 1.6 s) with an action of the corridor. The engine
is `ServerEngine`, the environment the real corridor. Times and actions depend on the prompt and the request's seed alone, so that both ways
of waiting play the same episodes; the program fails where they do not. Ratios above 1: not waiting is faster.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from common import options as cli

from dreamgym.engines.server.config import ServerConfig
from dreamgym.engines.server.engine import ServerEngine
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.logs.demonstrations import collect
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.recipes import factory
from dreamgym.rollout import DEFAULT_MIN_READY, rollout
from dreamgym.types import Trajectory

ACTIONS = ("left", "right", "open", "look around")
MEDIAN_S, SPREAD = 0.1, 1.2


def serve(replies: Sequence[list[int]], context: int, port: Any) -> None:
    """Answer for ever; the port goes through the pipe."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def log_message(self, *_: Any) -> None:
            """Silence."""

        def do_GET(self) -> None:
            self.answer({"data": [{"id": "policy", "max_model_len": context}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "prompt" not in asked or not self.path.endswith("/completions"):
                return self.answer({"detail": "Not Found"}, 404)
            rng = random.Random(f"{asked['seed']}/{asked['prompt']}")
            time.sleep(MEDIAN_S * rng.lognormvariate(0.0, SPREAD))
            ids = rng.choice(replies)
            choice = {"token_ids": ids, "finish_reason": "stop", "stop_reason": ids[-1], "logprobs": {"token_logprobs": [-1.0] * len(ids)}}
            self.answer({"choices": [choice], "usage": {"prompt_tokens": len(asked["prompt"])}})

        def answer(self, body: Any, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port.send(server.server_port)
    server.serve_forever()


def played(tasks: int, length: int, ready: float) -> dict[str, Any]:
    """One rollout of each task, with a share `ready` of the episodes waited for."""
    suite = corridor.make(length=length, max_steps=2 * length)
    tokenizer = factory.learn_tokenizer(collect(suite, 60, seed=0), suite.rules, 320)
    words = factory.make_vocabulary(tokenizer)
    template = Markers(words)
    replies = [[*words.encode(action), *template.stop[:1]] for action in ACTIONS]
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(replies, 4096, sender), daemon=True)
    server.start()
    config = ServerConfig(base_url=f"http://127.0.0.1:{receiver.recv()}/v1", model="policy", dialect="vllm", concurrency=4 * tasks)
    engine = ServerEngine(config, tokenizer)
    agent, env = Agent(engine, template, suite.rules), EnvPool(suite.require_env, suite.rules)
    few = suite.tasks("train", tasks)
    chosen = [few[i % len(few)] for i in range(tasks)]
    start = time.perf_counter()
    episodes = rollout(agent, env, chosen, seed=0, max_steps=suite.max_steps, min_ready=ready)
    seconds = time.perf_counter() - start
    engine.close()
    server.terminate()
    return {"seconds": seconds, "turns": sum(len(t.turns) for t in episodes), "episodes": [_record(t) for t in episodes]}


def _record(episode: Trajectory) -> list[Any]:
    return [episode.success, [step.action for step in episode.transitions], episode.error]


def main() -> None:
    parser = cli.parser(__doc__, full="256 episodes of at most 16 steps", smoke="4 episodes of at most 6 steps")
    options = parser.parse_args()
    tasks, length = (256, 8) if options.full else (4, 3) if options.smoke else (64, 5)
    lockstep, asynchronous = (played(tasks, length, ready) for ready in (1.0, DEFAULT_MIN_READY))
    if lockstep.pop("episodes") != asynchronous.pop("episodes"):
        raise SystemExit("The two ways of waiting played different episodes.")
    found = {"tasks": tasks, "turns": lockstep["turns"], "lockstep_s": lockstep["seconds"], "asynchronous_s": asynchronous["seconds"]}
    found |= {"ratio_vs_lockstep": lockstep["seconds"] / asynchronous["seconds"], "median_s": MEDIAN_S, "ready": DEFAULT_MIN_READY}
    print(
        f"{tasks} episodes, {found['turns']} turns: {found['lockstep_s']:.2f} s in lockstep, {found['asynchronous_s']:.2f} s without, "
        f"ratio {found['ratio_vs_lockstep']:.2f}"
    )
    cli.finish(options, found)


if __name__ == "__main__":
    main()
