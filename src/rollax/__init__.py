"""Rollax: reinforcement-learning agents in JAX whose whole training run is one pure, explicit scan.

Sub-packages load when they are first touched, so that `import rollax` costs nothing and imports no JAX:

- `rollax.envs`: pure environments, spaces, wrappers, adapters.
- `rollax.replay`: replay buffers.
- `rollax.agents`: one file per algorithm, and the parts that they share.
- `rollax.experiments`: training, evaluation, run folders, the command line.
"""

import lazy_loader

from rollax.errors import InputError

__version__ = "0.1.0"

__getattr__, __dir__, _submodules = lazy_loader.attach(__name__, submodules=["agents", "envs", "experiments", "replay"])
__all__ = [*_submodules, "InputError", "__version__"]
