"""Folders of runs that never ran, with all that a report reads."""

import json

import pandas as pd
import yaml
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

CREDIT = {"grpo": "UniformCredit", "mcpo": "MarginCredit", "inverted": "InvertedMarginCredit"}
ENVIRONMENT = {
    "python": "3.11.7", "command": ["/somewhere/rlvr", "fit", "-c", "a.yaml"], "packages": {"torch": "2.13.0"},
    "git_commit": "0123456789abcdef", "git_dirty": False, "device": "cpu",
}  # fmt: skip


def write_json(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def change(file, **changes):
    """Other values in a JSON file."""
    write_json(file, json.loads(file.read_text()) | changes)


def make_samples(arm, seed, problems=6, samples=4):
    """Later problems are solved more often, and all more often by other arms than grpo; they share the seeds."""
    better = arm != "grpo"
    rows = [
        {
            "problem_hash": f"{seed}-{p}", "sample": k, "seed": 1000 * seed + 10 * p + k,
            "tokens": 20 + k + 3 * better, "truncated": False, "correct": (7 * k + seed) % 5 < p - 1 + better,
        }
        for p in range(problems) for k in range(samples)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["status"] = frame["correct"].map({True: "correct", False: "wrong"})
    frame["reward"] = frame.pop("correct").astype(float)
    return frame


def make_evaluation(version, frame, step, name="sums", folder=None, **conditions):
    where = version / "eval" / (folder or name)
    used = {
        "weights": str(version.relative_to(version.parents[2])),
        "step": step,
        "temperature": 1.0,
        "sample_seed": 0,
    } | conditions
    write_json(where / "settings.json", {"name": name, "conditions": used, "num_problems": 6, "num_samples": 4})
    frame.to_parquet(where / "per_problem.parquet")


def make_curve(version, steps, cost=1.0, first=1, purge=None, **tags):
    """Events of steps first, ..., steps; ``purge``: what earlier files say from this step on is void."""
    with SummaryWriter(str(version)) as writer:
        if purge is not None:
            log = Event(step=purge, session_log=SessionLog(status=SessionLog.START))
            writer._get_file_writer().event_writer.add_event(log)
        for step in range(first, steps + 1):
            totals = {"rollouts": 1, "sampled_tokens": 100 * cost, "seconds": 0.5, "flops": 1e9 * cost}
            scalars = {f"time/total_{name}": step * value for name, value in totals.items()}
            scalars |= {"reward/mean": step / 100, "advantage/rms": 0.9}
            for tag, value in (scalars | tags).items():
                writer.add_scalar(tag, value, step)


def make_run(folder, arm, seed, steps=20, version=0, finished=True, evaluated=True, **curve):
    path = folder / arm / f"seed_{seed}" / f"version_{version}"
    settings = {
        "credit": {"class_path": f"a.b.{CREDIT[arm]}"},
        "data": {"data_seed": seed},
        "name": f"{arm}/seed_{seed}",
    }
    write_json(path / "progress.json", {"step": steps, "max_steps": 20, "rollouts": steps, "finished": finished})
    write_json(path / "problems.json", {"data_seed": seed, "data_hash": f"hash of {seed}", "ids": {}})
    write_json(path / "environment.json", ENVIRONMENT)
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    rollouts = [{"step": step, "problems": [f"{seed}/{step}"], "seeds": [step, seed]} for step in range(1, steps + 1)]
    (path / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rollouts))
    make_curve(path, steps, **curve)
    if evaluated:
        make_evaluation(path, make_samples(arm, seed), steps, sample_seed=seed)
    return path


def make_sweep(folder, arms=("grpo", "mcpo"), seeds=(0, 1, 2)):
    """Runs laid out by hand; mcpo costs twice as much for a step."""
    for arm in arms:
        for seed in seeds:
            make_run(folder, arm, seed, cost=2.0 if arm == "mcpo" else 1.0)
    return folder
