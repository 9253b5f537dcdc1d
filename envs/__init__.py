"""Pure environments: the protocol, spaces, wrappers, and adapters to environment suites.

An environment is two pure functions, `reset(key, params)` and `step(key, state, action, params)`, and two spaces.
`envs.make(id)` builds one of a suite's; `AutoReset`, `EpisodeStatistics` and `Vectorise` wrap any of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
