from .base import Buffer as Buffer
from .base import ReplayState as ReplayState
from .base import Sample as Sample
from .buffers import uniform as uniform
from .positions import Positions as Positions
