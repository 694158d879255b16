"""Two trials under Ray Tune with Fluid's widths: `python -m tests.support.tune_run FOLDER`. Prints a JSON line per trial.

A Ray of its own with two GPUs that are only numbers: what a trial gets of them is what is looked at. FOLDER: short, for Ray's sockets.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

#: Iterations of the short trial, and seconds that one takes on one GPU. The long one ends after some iterations on two GPUs, however
#: late the short one began and ended; at the latest after LONG_MOST.
SHORT, WIDE, LONG_MOST, ITERATION_S = 4, 3, 1000, 0.2


def learn(config: dict[str, Any]) -> None:
    """A trial: its iterations are as fast as it has GPUs, and it goes on from its checkpoint, because Tune restarts it to change it."""
    from ray import tune

    kept = tune.get_checkpoint()
    begun = 0 if kept is None else json.loads((Path(kept.path) / "at.json").read_text())
    gpus = sum(bundle.get("GPU", 0.0) for bundle in tune.get_context().get_trial_resources().bundles)
    last = SHORT if config["short"] else begun + WIDE if gpus > 1 else LONG_MOST
    for at in range(begun + 1, last + 1):
        time.sleep(ITERATION_S / gpus)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "at.json").write_text(json.dumps(at))
            tune.report({"at": at, "gpus": gpus, "quality": at}, checkpoint=tune.Checkpoint.from_directory(folder))


def main(folder: str) -> None:
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler

    from cluster.fluid_tune import Settings, allocation_function, bundles
    from scheduler.fluid import Pool

    def left_s(trial: Any, result: Any) -> float:
        return ITERATION_S * (SHORT if trial.config["short"] else 100)

    ray.init(
        num_cpus=4, num_gpus=2, include_dashboard=False, _temp_dir=f"{folder}/r", log_to_driver=False, logging_level="error"
    )
    try:
        allocate = allocation_function(Settings(pool=Pool(gpus=2, width_max=2), left_s=left_s))
        base = ASHAScheduler(metric="quality", mode="max", max_t=LONG_MOST, grace_period=LONG_MOST)
        found = tune.Tuner(
            tune.with_resources(learn, tune.PlacementGroupFactory([*bundles(Fraction(1))])),
            param_space={"short": tune.grid_search([True, False])},
            tune_config=tune.TuneConfig(scheduler=ResourceChangingScheduler(base, allocate)),
            run_config=tune.RunConfig(storage_path=f"{folder}/t", verbose=0),
        ).fit()
        for result in found:
            told = result.metrics_dataframe
            print(json.dumps({"error": str(result.error), "at": told["at"].tolist(), "gpus": told["gpus"].tolist()}))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
