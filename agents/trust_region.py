"""Soft trust regions of MPO and V-MPO: reweighted policies, and divergences that dual variables keep within bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from rollax.agents import optimisers
from rollax.agents.base import Hyperparameters, require_each

LIMIT = 14.0
"""Logarithms of dual variables stay within it either way, so that one whose constraint does not bind comes back."""
OF_BOX = {"improvement": "epsilon", "mean": "epsilon_mean", "scale": "epsilon_scale"}
OF_CHOICES = {"improvement": "epsilon", "policy": "epsilon_policy"}
"""What is bounded, and the agent's number that says by how much."""
INITIAL = {
    "improvement": "initial_temperature",
    "mean": "initial_penalty",
    "policy": "initial_penalty",
    "scale": "initial_scale_penalty",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Duals:
    """The dual variables of a policy."""

    log: dict[str, jax.Array]  # float32 [] by what is bounded; the one of `improvement` is the temperature
    opt_state: optax.OptState

    @property
    def values(self) -> dict[str, jax.Array]:
        """The dual variables themselves, above 0."""
        return {name: jnp.exp(log) for name, log in self.log.items()}


def check(config: Any) -> None:
    """Raises InputError where the numbers of an agent's config make no trust region."""
    bounds = ("epsilon", "epsilon_mean", "epsilon_scale", "epsilon_policy", "dual_learning_rate")
    require_each(config, bounds, lambda value: value > 0, "must be above 0")
    low, high = math.exp(-LIMIT), math.exp(LIMIT)
    duals = sorted(set(INITIAL.values()))
    require_each(config, duals, lambda value: low <= value <= high, f"must be between {low:.0e} and {high:.0e}")


def init(of_box: bool, optimiser: optax.GradientTransformation, hyper: Hyperparameters) -> Duals:
    """Returns the dual variables at the start, of a policy in a Box or of one among choices."""
    bounds = OF_BOX if of_box else OF_CHOICES
    log = {name: jnp.log(hyper[INITIAL[name]]) for name in bounds}
    return Duals(log, optimiser.init(log))


def improve(values: jax.Array, log_weight: jax.Array, temperature: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """The E-step: the improved policy (Abdolmaleki et al. 2018, section 4.1), a reweighting of the target policy.

        q(a|s) = pi'(a|s) exp(Q'(s, a) / eta) / Z(s)

    The temperature eta that keeps the mean of KL(q || pi') at epsilon minimises the dual

        g(eta) = eta epsilon + eta E_s[log Z(s)],   whose slope is   epsilon - E_s[KL(q || pi')].

    Args:
        values: Q'(s, a) of A actions in each of B states, float `[B, A]`.
        log_weight: log pi'(a|s), or -log A of A actions drawn from it, float `[B, A]`.
        temperature: eta, above 0.

    Returns:
        q, float `[B, A]`, and KL(q || pi') in nats, float `[B]`.
    """
    chex.assert_rank(values, 2)
    chex.assert_equal_shape([values, log_weight])
    advantage = values / temperature
    # Of the likeliest action, not the largest: an illegal action's value would swallow the digits of the others.
    likeliest = jnp.argmax(log_weight + advantage, axis=-1, keepdims=True)
    advantage -= jnp.take_along_axis(advantage, likeliest, axis=-1)
    log_ratio = advantage - jax.nn.logsumexp(log_weight + advantage, axis=-1, keepdims=True)
    weights = jnp.exp(log_weight + log_ratio)
    return weights, jnp.sum(weights * log_ratio, axis=-1)


def tighten(
    optimiser: optax.GradientTransformation,
    duals: Duals,
    divergences: dict[str, jax.Array],
    hyper: Hyperparameters,
    weights: jax.Array | float = 1.0,
) -> Duals:
    """Takes one step on the dual variables: one whose constraint is broken grows.

        d log alpha_i ~ KL_i - epsilon_i,   d log eta ~ KL(q || pi') - epsilon

    A dual variable's logarithm follows the slope in the variable itself, which has the same sign and, unlike that in
    the logarithm, does not vanish with the variable.

    Args:
        optimiser: Without its learning rate, `dual_learning_rate`.
        duals: So far.
        divergences: KL_i of all that is bounded, in states whose mean counts, float32 arrays.
        hyper: The agent's numbers.
        weights: Of those states.
    """
    bounds = {**OF_BOX, **OF_CHOICES}
    slopes = {name: jnp.mean(weights * (hyper[bounds[name]] - divergences[name])) for name in duals.log}
    log, opt_state = optimisers.descend(optimiser, slopes, duals.opt_state, duals.log, hyper["dual_learning_rate"])
    return Duals({name: jnp.clip(dual, -LIMIT, LIMIT) for name, dual in log.items()}, opt_state)


def penalty(duals: dict[str, jax.Array], divergences: dict[str, jax.Array]) -> jax.Array:
    """Returns sum_i alpha_i KL_i over `divergences`, arrays of one shape."""
    return jnp.stack([duals[name] * divergence for name, divergence in divergences.items()]).sum(axis=0)


def metrics(duals: dict[str, jax.Array], divergences: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns what an update reports of dual variables, before it, and of what they bound, arrays of any shape."""
    reported = {"temperature": duals["improvement"]}
    reported |= {f"kl_{name}": jnp.mean(divergence) for name, divergence in divergences.items()}
    return reported | {f"penalty_{name}": dual for name, dual in duals.items() if name != "improvement"}
