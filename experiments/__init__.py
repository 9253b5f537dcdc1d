"""Experiments: the training loop, evaluation, many seeds on many devices, run folders, the command line."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
