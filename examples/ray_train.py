"""Train on Ray Train or under torchrun, and go on after a failure with any number of workers.

A small model learns which flights come in late, on the CPU. The loader finds its rank and the
world size by itself, and its position goes into the checkpoint beside model and optimizer. So a
restart, with as many workers or with fewer or more, delivers the rows that the model has not seen,
each once, in the global batches that an uninterrupted run has.

    python examples/ray_train.py --workers 2             # Ray Train; needs ray[train] and torch
    torchrun --nproc-per-node=2 examples/ray_train.py    # the same without Ray, as on Slurm

Both write checkpoints below --out, and go on from the newest one there when they are started again.
To see it, let a worker die in mid-epoch, and start again with fewer:

    python examples/ray_train.py --workers 2 --die-at 12
    python examples/ray_train.py --workers 1

or let Ray Train restart the workers by itself: --workers 2 --die-at 12 --max-failures 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import forebay as fb

FEATURES = ["dep_delay", "distance", "hour", "month"]


def dataset(uri: str) -> fb.Dataset:
    """Flights as ``x`` (float32, four features), ``late`` (0.0 or 1.0), and ``row`` (who it is)."""
    ds = fb.read_parquet(uri)
    ds = ds.with_column("row", "concat_ws(' ', month, day, carrier, flight)")
    ds = ds.with_column("late", "CAST(arr_delay > 15 AS REAL)")
    for column, scale in zip(FEATURES, (60, 1000, 24, 12), strict=True):
        ds = ds.with_column(column, f"CAST({column} AS REAL) / {scale}")
    return ds.select([*FEATURES, "late", "row"]).stack(FEATURES, into="x")


def train(config: dict) -> None:
    """Train on one worker. Ray Train and torchrun run this same function on each of them."""
    # The process group is there already: Ray Train or `main` made it.
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(len(FEATURES), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    # The *global* batch size is given, so that another number of workers shares the same batches.
    # The number of workers must divide it: 480 can be shared by 1, 2, 3, 4, 5, 6, 8, ... workers.
    # epoch_end="partial" trains on every row; the last batch of an epoch is smaller.
    batch_size = config["global_batch_size"]
    loader = dataset(config["data"]).loader(
        global_batch_size=batch_size, seed=7, epoch_end="partial", fill=0
    )

    # All workers load the same checkpoint, and the same position of the loader with it.
    state = load(config)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    parallel = DistributedDataParallel(model)

    def checkpoint(loss: float) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        # Every worker has the same state after the same number of steps; that of one is enough.
        state["loader"] = loader.state_dict()
        save(config, state, {"epoch": loader.epoch, "loss": loss})

    loss = torch.zeros(())
    for epoch in range(loader.epoch, config["epochs"]):
        first = loader.state_dict()["samples"] // batch_size  # 0, or where the checkpoint was
        for step, batch in enumerate(loader, first):
            log_rows(config, {"epoch": epoch, "step": step, "first": first}, batch["row"])
            if step == config["die_at"] and rank == world - 1 and not state:
                os.kill(os.getpid(), signal.SIGKILL)
            # A sum over this worker's rows, divided by the rows of all: each row weighs the same
            # on any number of workers, and a worker without rows (in the last batch) adds 0.
            logits = parallel(batch["x"]).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(logits, batch["late"], reduction="sum")
            loss = loss * world / batch_size  # DistributedDataParallel takes the mean over workers
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % config["checkpoint_every"] == 0:
                checkpoint(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: steps {first} to {len(loader)}, {world} workers", flush=True)
        # The loop has ended, so this position is the beginning of the next epoch.
        checkpoint(loss.item())


def load(config: dict) -> dict | None:
    """Load the newest checkpoint; None in a first run."""
    if config["on_ray"]:
        import ray.train

        newest = ray.train.get_checkpoint()
        if newest is None:
            return None
        with newest.as_directory() as folder:
            return torch.load(Path(folder) / "state.pt")
    path = Path(config["out"]) / "state.pt"
    return torch.load(path) if path.exists() else None


def save(config: dict, state: dict, metrics: dict) -> None:
    """Save a checkpoint whole or not at all; every worker calls this after the same step."""
    rank = dist.get_rank()
    if config["on_ray"]:
        import ray.train

        with tempfile.TemporaryDirectory() as folder:
            new = None
            if rank == 0:
                torch.save(state, Path(folder) / "state.pt")
                new = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=new)  # a barrier: all workers call it
    elif rank == 0:
        path = Path(config["out"]) / "state.pt"
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)


def log_rows(config: dict, where: dict, rows: list[str]) -> None:
    """With --log-rows, note the rows of this worker's part of a step, one JSON line for each."""
    if config["log_rows"]:
        line = {**where, "rank": dist.get_rank(), "world": dist.get_world_size(), "rows": rows}
        with open(Path(config["log_rows"]) / f"{os.getpid()}.jsonl", "a") as out:
            out.write(json.dumps(line) + "\n")


def run_on_ray(config: dict, workers: int, min_workers: int | None, max_failures: int) -> None:
    """Run `train` on workers of Ray Train, on the cluster of RAY_ADDRESS or on this machine."""
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    out = Path(config["out"])
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        # With a range, Ray Train takes as many workers as the cluster has room for.
        scaling_config=ray.train.ScalingConfig(
            num_workers=(min_workers, workers) if min_workers else workers
        ),
        # A run with the same name in the same place goes on from its newest checkpoint. On more
        # than one machine the place must be one that all of them see.
        run_config=ray.train.RunConfig(
            name=out.name,
            storage_path=str(out.parent),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    print(f"newest checkpoint: {result.checkpoint.path if result.checkpoint else None}")


def main() -> None:
    """Read the command line, and train with whoever started this process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="examples/data/flights", help="folder or s3:// prefix")
    parser.add_argument("--out", default="out/ray_train", help="folder for checkpoints")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--global-batch-size", type=int, default=480, help="rows of all workers")
    parser.add_argument("--checkpoint-every", type=int, default=5, metavar="STEPS")
    parser.add_argument("--workers", type=int, default=2, help="on Ray; torchrun has its own")
    parser.add_argument("--min-workers", type=int, help="on Ray: or as few as this")
    parser.add_argument("--max-failures", type=int, default=0, help="on Ray: restarts by itself")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="kill a worker there")
    parser.add_argument("--log-rows", metavar="FOLDER", help="note which rows each step contained")
    config = vars(parser.parse_args())
    ray_options = {name: config.pop(name) for name in ("workers", "min_workers", "max_failures")}

    # Workers of Ray Train have a working directory of their own: paths must be absolute.
    if "://" not in config["data"]:
        config["data"] = os.path.abspath(config["data"])
    for folder in ("out", "log_rows"):
        if config[folder]:
            config[folder] = os.path.abspath(config[folder])
            os.makedirs(config[folder], exist_ok=True)

    config["on_ray"] = "RANK" not in os.environ  # torchrun sets it
    if config["on_ray"]:
        run_on_ray(config, **ray_options)
    else:
        dist.init_process_group("gloo")
        train(config)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
