"""A trained policy to use: loaded from a run, and exported to one file that needs no Rollax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from rollax import envs
from rollax.agents.base import Agent
from rollax.agents.registry import resolve
from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError
from rollax.experiments import checkpoint, files, run_folder
from rollax.experiments import config as configs
from rollax.experiments.saving import agents_like
from rollax.experiments.trainer import make_env, make_trainer

PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """One seed's policy: a pure function, its normalisation inside. Jit it, map it, close over it.

    Attributes:
        agent: The agent.
        state: Its state, of one seed.
        observation_space: What it observes, a PyTree of spaces.
        action_space: What it acts in.
    """

    agent: Agent
    state: Any
    observation_space: PyTree
    action_space: spaces.Space

    def init_memory(self, num_envs: int) -> PyTree:
        """Returns the memory of N environments at the start of an episode."""
        return self.agent.init_memory(num_envs)

    def __call__(
        self,
        observation: PyTree,
        memory: PyTree,
        key: jax.Array | None = None,
        is_first: jax.Array | bool = False,
        action_mask: jax.Array | None = None,
        greedy: bool = True,
    ) -> tuple[PyTree, jax.Array]:
        """Chooses actions for N environments, as training and evaluation do.

        Args:
            observation: Leaves `[N, *observation_shape]`.
            memory: From `init_memory(N)` or the last call.
            key: The randomness of all N actions; not needed where `greedy`.
            is_first: Whether an episode starts with the observation, bool `[N]` or one for all. Tell it the first time
                too: it resets memory and, in some agents, draws the noise of an episode.
            action_mask: Legal actions, bool `[N, num_actions]`; None: all are.
            greedy: Whether to take the most likely actions; otherwise to act as in training. Static.

        Returns:
            The memory after this step, and actions `[N, *action_shape]`, legal in the action space.

        Raises:
            InputError: `greedy` is False without a key, or the observation is not one of N environments.
        """
        num_envs = self._count(observation)
        if not greedy and key is None:
            raise InputError("a policy that is not greedy draws actions: pass it a key.")
        first = jnp.broadcast_to(jnp.asarray(is_first, jnp.bool_), (num_envs,))
        timestep = jax.vmap(lambda seen, first, mask: envs.timestep(seen, is_first=first, action_mask=mask))(
            observation, first, action_mask
        )
        key = jax.random.key(0) if key is None else key
        memory, decision = self.agent.act(self.state, memory, timestep, key, explore=not greedy)
        return memory, decision.action

    def _count(self, observation: PyTree) -> int:
        """Returns N; raises InputError for what is not `[N, *observation_shape]`."""
        structures: list[Any] = [jax.tree.structure(tree) for tree in (self.observation_space, observation)]
        wanted = [space.shape for space in jax.tree.leaves(self.observation_space)]
        found = [jnp.shape(leaf) for leaf in jax.tree.leaves(observation)]
        if structures[0] != structures[1] or not found[0] or found != [(found[0][0], *shape) for shape in wanted]:
            raise InputError(
                f"the policy was given observations of shapes {found}: pass those of N environments, [N, ...] of "
                f"{wanted}, in the structure of its observation_space."
            )
        return int(found[0][0])


def load_policy(run: str | Path, seed: int | Literal["best"] = 0, which: Literal["final", "best"] = "final") -> Policy:
    """Loads the policy of one seed of a finished run.

    Args:
        run: The folder of the run.
        seed: The seed's number, or "best": the one with the highest return in its last greedy evaluation (with
            `which="best"`, in its best one).
        which: The agent at the end of training, or that of the seed's best greedy evaluation.

    Raises:
        InputError: The folder holds no finished run, there is no such seed, or the checkpoint does not fit the config.
    """
    opened = run_folder.open(run)
    config = configs.load(opened.config_path)
    summary = opened.read_summary()
    seeds = opened.finished_seeds()
    if which not in ("final", "best"):
        raise InputError(f"which = {which!r} is no policy of a run: choose final or best.")
    if seed == "best":
        scores = (
            [row["return_mean"] for row in summary.get("best", [])]
            if which == "best"
            else [row["return_mean"] for row in opened.evaluation_records()[-seeds:]]
        )
        if not scores:
            raise InputError(f"run {str(run)!r} has no evaluations to choose a seed by: give the seed's number.")
        seed = int(np.argmax([-np.inf if score is None or np.isnan(score) else score for score in scores]))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < seeds:
        raise InputError(f"seed = {seed!r} is not in run {str(run)!r}: it has the seeds 0 to {seeds - 1}, and 'best'.")
    states = checkpoint.restore(opened.checkpoints_path / which, agents_like(make_trainer(config), seeds))
    env = make_env(config.env)
    agent = resolve(config.train.agent).make(env.observation_space(), env.action_space(), config.agent)
    state = jax.tree.map(lambda leaf: leaf[seed], states)
    return Policy(agent, state, env.observation_space(), env.action_space())


def export_policy(
    policy: Policy,
    path: str | Path,
    num_envs: int = 1,
    action_mask: bool = False,
    greedy: bool = True,
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Writes a policy to one file that JAX alone can run.

    `jax.export.deserialize(bytearray(open(path, "rb").read())).call(observation, memory, key, is_first)` returns
    `(memory, action)`. Memory is a flat tuple of arrays, which may be anything, such as zeros, where `is_first` is
    True; `is_first` is bool `[N]`; with an `action_mask`, it is the last argument.

    Args:
        policy: From `load_policy`.
        path: The file; it is replaced.
        num_envs: N, which the file is for.
        action_mask: Whether the exported function takes masks.
        greedy: Whether it takes the most likely actions or draws them.
        platforms: What it shall run on.

    Raises:
        InputError: The package `flatbuffers` is missing, a platform is unknown, or `num_envs` is below 1.
        OSError: The file cannot be written.
    """
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"path = {str(path)!r} is in no folder that exists: make it first.")
    if num_envs < 1:
        raise InputError(f"num_envs = {num_envs} must be at least 1.")
    if not platforms or not set(platforms) <= {*PLATFORMS, "rocm"}:
        raise InputError(
            f"platforms = {list(platforms)} are not what JAX exports to: choose of {', '.join(PLATFORMS)}."
        )
    memory, structure = jax.tree.flatten(jax.eval_shape(lambda: policy.init_memory(num_envs)))

    def act(observation: PyTree, memory: tuple[jax.Array, ...], key: jax.Array, is_first: jax.Array, *mask: Any) -> Any:
        legal = mask[0] if mask else None
        after, action = policy(observation, jax.tree.unflatten(structure, memory), key, is_first, legal, greedy)
        return tuple(jax.tree.leaves(after)), action

    observation = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_envs, *leaf.shape), leaf.dtype), spaces.zeros(policy.observation_space)
    )
    first = jax.ShapeDtypeStruct((num_envs,), jnp.bool_)
    arguments: list[Any] = [observation, tuple(memory), jax.eval_shape(lambda: jax.random.key(0)), first]
    if action_mask:
        if not isinstance(policy.action_space, spaces.Discrete):
            raise InputError(f"action_mask = True needs a Discrete action space, not {policy.action_space!r}.")
        arguments.append(jax.ShapeDtypeStruct((num_envs, policy.action_space.n), jnp.bool_))
    exported = export.export(jax.jit(act), platforms=platforms)(*arguments)
    try:
        content = exported.serialize()
    except ImportError as error:
        raise InputError("exporting a policy needs the package flatbuffers: pip install rollax[export].") from error
    files.replace_file(Path(path).absolute(), bytes(content))
