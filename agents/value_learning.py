"""Losses and targets of action-value learning: pure functions of batches, with the equation and the paper of each.

`next_values` are always those of the true successor (`final_observation` of the row at `NStep.last`), and the discount
of an `NStep` is 0 where that row terminated: a truncation bootstraps and a termination does not.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import optax

from rollax.agents.exploration import legal
from rollax.agents.returns import NStep


def chosen(values: jax.Array, action: jax.Array) -> jax.Array:
    """Returns the values `[B, ...]` of actions int `[B]` among those of all actions, `[B, A, ...]`."""
    chex.assert_rank(action, 1)
    return values[jnp.arange(action.shape[0]), action]


def bootstrapped(folded: NStep, next_values: jax.Array) -> jax.Array:
    """Returns n-step returns with the value that each ends in.

        G = R + gamma^m V(s')

    Args:
        folded: R and gamma^m of B windows.
        next_values: V(s'), or anything that stands for it (of each action, of each atom), float `[B, ...]`.

    Returns:
        G, float like `next_values`.
    """
    shape = (-1,) + (1,) * (next_values.ndim - 1)
    return folded.reward.reshape(shape) + folded.discount.reshape(shape) * next_values


def q_target(folded: NStep, next_values: jax.Array, selector: jax.Array) -> jax.Array:
    """Targets of Q-learning (Watkins 1989) and double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461).

        G = R + gamma^m Q(s', argmax_a selector(s', a))

    Args:
        folded: R and gamma^m of B windows.
        next_values: Q(s', .) of the target network, float `[B, A]`, or atoms of its distribution `[B, A, K]`.
        selector: What the action is chosen by, illegal actions lowest, float `[B, A]`: the target network's values, or
            with double Q-learning those of the online network.

    Returns:
        float `[B]`, or `[B, K]`.
    """
    chex.assert_equal_shape_prefix([next_values, selector], 2)
    return bootstrapped(folded, chosen(next_values, jnp.argmax(selector, axis=-1)))


def log_policy(values: jax.Array, temperature: jax.Array | float, mask: jax.Array | None = None) -> jax.Array:
    """Returns log softmax(Q(s, .) / temperature), float `[B, A]`, with no mass on actions that `mask` rules out."""
    chex.assert_rank(values, 2)
    return jax.nn.log_softmax(legal(values / temperature, mask), axis=-1)


def munchausen_target(
    folded: NStep,
    log_prob: jax.Array,
    next_values: jax.Array,
    next_log_policy: jax.Array,
    scale: jax.Array | float,
    temperature: jax.Array | float,
    floor: jax.Array | float,
) -> jax.Array:
    """Targets of Munchausen Q-learning (Vieillard et al. 2020, https://arxiv.org/abs/2007.14430), of each next action.

        G(a') = R + alpha clip(tau log pi(a|s), l_0, 0) + gamma^m (Q(s', a') - tau log pi(a'|s'))

    The target is their mean under pi(.|s'); of distributions, the mixture. With n-step returns the bonus is that of the
    first step.

    Args:
        folded: R and gamma^m of B windows.
        log_prob: log pi(a|s) of the actions taken, by the target network, float `[B]`.
        next_values: Q(s', .) of the target network, float `[B, A]`, or atoms of its distribution `[B, A, K]`.
        next_log_policy: log pi(.|s') by the target network, float `[B, A]`.
        scale: alpha.
        temperature: tau, in units of value.
        floor: l_0, at most 0.

    Returns:
        G, float like `next_values`; finite for illegal actions too, which have no mass.
    """
    chex.assert_equal_shape_prefix([next_values, next_log_policy], 2)
    chex.assert_equal_shape([log_prob, folded.reward])
    bonus = scale * jnp.clip(temperature * log_prob, floor, 0.0)
    entropy = (temperature * next_log_policy).reshape(*next_log_policy.shape, *(1,) * (next_values.ndim - 2))
    return bootstrapped(folded, next_values - entropy) + bonus.reshape(-1, *(1,) * (next_values.ndim - 1))


def categorical_projection(atoms: jax.Array, weights: jax.Array, support: jax.Array) -> jax.Array:
    """Projects distributions onto a support (Bellemare et al. 2017, https://arxiv.org/abs/1707.06887).

    Each atom is clipped into the support's range and its weight divided among its two neighbours there, the closer one
    getting more.

    Args:
        atoms: float `[B, M]`, in any order.
        weights: Their probabilities, float `[B, M]`.
        support: Ascending, float `[K]`, K at least 2.

    Returns:
        Probabilities on the support, float `[B, K]`.
    """
    chex.assert_equal_shape([atoms, weights])
    chex.assert_rank([atoms, support], [2, 1])
    gaps = jnp.diff(support)
    above, below = jnp.append(gaps, gaps[-1]), jnp.append(gaps[0], gaps)
    distance = jnp.clip(atoms, support[0], support[-1])[..., None] - support
    share = jnp.maximum(1.0 - jnp.where(distance >= 0, distance / above, -distance / below), 0.0)
    return jnp.einsum("bm,bmk->bk", weights, share)


def categorical_loss(log_probs: jax.Array, target: jax.Array) -> jax.Array:
    """The Kullback-Leibler divergence of predictions from projected targets; it has the gradient of the cross-entropy.

        L = sum_k m_k (log m_k - log p_k)

    Args:
        log_probs: log p_k, float `[B, K]`.
        target: m_k, probabilities, float `[B, K]`.

    Returns:
        float `[B]`.
    """
    chex.assert_equal_shape([log_probs, target])
    return jnp.sum(jax.scipy.special.xlogy(target, target) - target * log_probs, axis=-1)


def quantile_loss(
    quantiles: jax.Array, taus: jax.Array, atoms: jax.Array, weights: jax.Array, threshold: jax.Array | float | None
) -> jax.Array:
    """Quantile regression with the Huber loss (Dabney et al. 2018, https://arxiv.org/abs/1710.10044).

        L = sum_i sum_j w_j |tau_i - [G_j < theta_i]| huber_kappa(G_j - theta_i)

    The Huber loss is x^2 / 2 near 0 and kappa (|x| - kappa / 2) beyond kappa; it is not divided by kappa.

    Args:
        quantiles: theta_i, float `[B, K]`.
        taus: Which quantiles they are, in [0, 1], float `[B, K]`.
        atoms: G_j of the target distribution, float `[B, M]`.
        weights: w_j, their probabilities, float `[B, M]`.
        threshold: kappa; None takes |x|, the loss without Huber's.

    Returns:
        float `[B]`: a sum over quantiles, a mean over the target.
    """
    chex.assert_equal_shape([quantiles, taus])
    chex.assert_equal_shape([atoms, weights])
    error = atoms[:, None, :] - quantiles[:, :, None]
    size = jnp.abs(error) if threshold is None else optax.huber_loss(error, delta=threshold)
    asymmetry = jnp.abs(taus[:, :, None] - (error < 0))
    return jnp.einsum("bm,bkm->b", weights, asymmetry * size)


def dueling(value: jax.Array, advantage: jax.Array) -> jax.Array:
    """Combines the two streams of a dueling network (Wang et al. 2016, https://arxiv.org/abs/1511.06581).

        Q(s, a) = V(s) + A(s, a) - mean_b A(s, b)

    Args:
        value: V(s), float `[..., 1, K]`, of each of K atoms.
        advantage: A(s, .), float `[..., A, K]`.

    Returns:
        Q(s, .), float `[..., A, K]`.
    """
    chex.assert_equal_rank([value, advantage])
    return value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


def signed_hyperbolic(value: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """Squashes values (Pohlen et al. 2018, https://arxiv.org/abs/1805.11593): h(x) = sgn(x)(sqrt(|x|+1)-1) + eps x."""
    return jnp.sign(value) * (jnp.sqrt(jnp.abs(value) + 1.0) - 1.0) + epsilon * value


def signed_parabolic(value: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """The inverse of `signed_hyperbolic`.

        h^-1(y) = sgn(y) (z^2 - 1),   z = 2 (1 + eps + |y|) / (1 + sqrt(1 + 4 eps (1 + eps + |y|)))

    The positive root of eps z^2 + z = 1 + eps + |y|, written without a difference of nearly equal numbers.
    """
    total = 1.0 + epsilon + jnp.abs(value)
    root = 2.0 * total / (1.0 + jnp.sqrt(1.0 + 4.0 * epsilon * total))
    return jnp.sign(value) * (jnp.square(root) - 1.0)
