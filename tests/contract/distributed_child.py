"""One process of a distributed run: `python -m tests.contract.distributed_child K PORT FOLDER run|stop|resume`."""

import os
import signal
import sys
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 1)

from rollax import experiments  # noqa: E402
from rollax.experiments import processes  # noqa: E402
from rollax.experiments.run_folder import RunFolder  # noqa: E402


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
        else:
            experiments.run(CONFIGS["prioritised"](), seeds=3, out=folder)
    except KeyboardInterrupt as interrupt:
        print(f"interrupted: {interrupt}")


if __name__ == "__main__":
    main(*sys.argv[1:])
