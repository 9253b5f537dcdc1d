"""Agents: one file per algorithm, and the parts that they share.

An agent is a bundle of pure functions (`rollax.agents.Agent`), made by `<algorithm>.make(observation_space,
action_space, config)`; its whole state is an explicit PyTree.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
