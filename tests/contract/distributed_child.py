"""One process of a job of two: `python -m tests.contract.distributed_child K PORT FOLDER ACTION`, as in `main`."""

import dataclasses
import os
import signal
import sys
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 1)

from rollax import experiments  # noqa: E402
from rollax.experiments import processes  # noqa: E402
from rollax.experiments.run_folder import RunFolder  # noqa: E402


def over_environments(config: experiments.ExperimentConfig) -> experiments.ExperimentConfig:
    """Returns the config of a run whose environments are spread over the devices."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, spread="environments"))


def main(number: str, port: str, folder: str, action: str) -> None:
    processes.join(f"localhost:{port},2,{number}")
    from tests.contract.jobs import CONFIGS

    if action == "stop":  # as Ctrl-C in the first process alone, once something has been logged
        append_metrics = RunFolder.append_metrics

        def append_and_stop(self: RunFolder, rows: Any) -> None:
            append_metrics(self, rows)
            RunFolder.append_metrics = append_metrics  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGINT)

        RunFolder.append_metrics = append_and_stop  # type: ignore[method-assign]
    try:
        if action == "resume":
            experiments.resume(folder)
        elif action == "environments":
            experiments.run(over_environments(CONFIGS["prioritised"]()), out=folder)
        else:
            experiments.run(CONFIGS["prioritised"](), seeds=3, out=folder)
    except KeyboardInterrupt as interrupt:
        print(f"interrupted: {interrupt}")


if __name__ == "__main__":
    main(*sys.argv[1:])
