"""The tanh-squashed normal: the numbers of the issue that broke others, quadrature, and gradients at saturation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rollax.agents.distributions import TanhNormal, log_tanh_derivative


@pytest.mark.parametrize(
    ("u", "log_prob"),
    [(0.0, -0.91894), (0.5, -0.80371), (5.0, -4.80514), (9.0, -24.80523), (12.0, -50.30523), (30.0, -392.30523)],
)
@pytest.mark.parametrize("jitted", [False, True])
def test_log_prob_is_finite_where_tanh_rounds_to_one(u: float, log_prob: float, jitted: bool) -> None:
    def evaluate(u: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
        return TanhNormal(loc[None], scale[None]).log_prob(u[None])

    function = jax.value_and_grad(evaluate, argnums=(0, 1, 2))
    value, gradients = (jax.jit(function) if jitted else function)(jnp.float32(u), jnp.float32(0.0), jnp.float32(1.0))
    assert float(value) == pytest.approx(log_prob, abs=2e-5 * max(1.0, abs(log_prob)))
    assert np.isfinite(gradients).all()


def test_derivative_against_double_precision() -> None:
    u = np.linspace(-8.0, 8.0, 33)
    np.testing.assert_allclose(
        log_tanh_derivative(jnp.asarray(u, jnp.float32)), np.log1p(-(np.tanh(u) ** 2)), atol=1e-4
    )


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (0.7, 0.3), (-2.0, 1.5), (0.0, 0.05)])
def test_density_integrates_to_one_and_entropy_is_its_integral(loc: float, scale: float) -> None:
    policy = TanhNormal(jnp.array([loc]), jnp.array([scale]))

    def density(action: float) -> float:
        u = np.arctanh(action)
        return float(scipy.stats.norm.pdf(u, loc, scale) / (1 - action**2))

    def weighted(action: float) -> float:
        return -density(action) * float(np.log(np.maximum(density(action), 1e-300)))

    limit = 1 - 1e-9
    mass, _ = scipy.integrate.quad(density, -limit, limit, points=[np.tanh(loc)], limit=500)
    entropy, _ = scipy.integrate.quad(weighted, -limit, limit, points=[np.tanh(loc)], limit=500)
    assert mass == pytest.approx(1.0, abs=1e-3)
    assert float(policy.entropy()) == pytest.approx(entropy, abs=0.01 * max(1.0, abs(entropy)))
    for action in (-0.9, 0.0, 0.4):
        log_prob = float(policy.log_prob(jnp.array([np.arctanh(action)])))
        assert log_prob == pytest.approx(np.log(density(action)), abs=1e-4 * max(1.0, abs(log_prob)))


def test_dimensions_add_up_under_vmap() -> None:
    loc, scale, u = jnp.array([[0.1, -0.3]] * 3), jnp.array([[0.5, 2.0]] * 3), jnp.array([[0.2, 0.4]] * 3)
    together = jax.vmap(lambda *args: TanhNormal(args[0], args[1]).log_prob(args[2]))(loc, scale, u)
    apart = sum(TanhNormal(loc[:, i : i + 1], scale[:, i : i + 1]).log_prob(u[:, i : i + 1]) for i in range(2))
    assert together.shape == (3,)
    np.testing.assert_allclose(together, apart, rtol=1e-6)
