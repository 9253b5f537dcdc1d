"""A gated transformer that attends to a sliding window of the past."""

from __future__ import annotations

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from rollax.agents.memory import Torso, Unrolled, from_flax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What one layer keeps of its last W inputs, oldest first."""

    keys: jax.Array  # float32 [N, W, num_heads, size / num_heads]
    values: jax.Array  # float32 [N, W, num_heads, size / num_heads]
    valid: jax.Array  # bool [N, W], of the episode that goes on


def transformer(size: int, window: int, num_heads: int) -> Torso:
    """One layer of a gated transformer (GTrXL, Parisotto et al. 2020, https://arxiv.org/abs/1910.06764).

        x' = gate(x, relu(attention(layer_norm(x))))
        y  = gate(x', relu(mlp(layer_norm(x'))))

    On features `[T, N, size]`. Step t attends to itself and to the `window` steps before it, as far as they are of its
    episode; what distance means is learnt, as a bias for each head and distance (Raffel et al. 2020). Memory holds keys
    and values, so that acting projects each input once; gradients reach back to the start of the sequence, not into the
    memory before it, which stays as the parameters that acted made it.
    """

    def init_memory(num_envs: int) -> Memory:
        projected = jnp.zeros((num_envs, window, num_heads, size // num_heads))
        return Memory(projected, projected, jnp.zeros((num_envs, window), jnp.bool_))

    return from_flax(GatedTransformerLayer(size, window, num_heads), init_memory)


class GatedTransformerLayer(nn.Module):
    """The layer; it is called as `Torso.unroll` is, without its params."""

    size: int
    window: int
    num_heads: int

    def setup(self) -> None:
        heads = (self.num_heads, self.size // self.num_heads)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(), nn.LayerNorm()
        self.query, self.key, self.value = (nn.DenseGeneral(heads) for _ in range(3))
        self.outputs = nn.DenseGeneral(self.size, axis=(-2, -1))
        self.distance_bias = self.param("distance_bias", nn.initializers.zeros, (self.num_heads, self.window + 1))
        self.gate_attention, self.gate_mlp = Gate(self.size), Gate(self.size)
        self.widen, self.narrow = nn.Dense(2 * self.size), nn.Dense(self.size)

    def __call__(
        self, memory: Memory, x: jax.Array, is_first: jax.Array, successor: jax.Array | None = None
    ) -> Unrolled:
        num_steps = x.shape[0]
        episode = jnp.cumsum(is_first, axis=0)  # [T, N]; the memory's is 0
        position = jnp.arange(num_steps)
        normed = self.norm_attention(x)
        keys = jnp.concatenate([jnp.moveaxis(memory.keys, 1, 0), self.key(normed)])  # [W + T, N, heads, d]
        values = jnp.concatenate([jnp.moveaxis(memory.values, 1, 0), self.value(normed)])
        key_episode = jnp.concatenate([jnp.where(memory.valid.T, 0, -1), episode])
        last = Memory(
            keys=jnp.moveaxis(keys[-self.window :], 0, 1),
            values=jnp.moveaxis(values[-self.window :], 0, 1),
            valid=(key_episode[-self.window :] == episode[-1]).T,
        )
        asking, asking_episode = x, episode
        if successor is not None:
            # Each stands one step behind its observation, in the same episode, and is seen by nobody else.
            asking, asking_episode = jnp.concatenate([x, successor]), jnp.concatenate([episode, episode])
            position = jnp.concatenate([position, position + 1])
        distance = position[:, None] - jnp.arange(-self.window, num_steps)  # [Q, W + T]
        near = (distance >= 1) & (distance <= self.window)
        visible = near[..., None] & (asking_episode[:, None] == key_episode)  # [Q, W + T, N]
        attended = self._attend(asking, keys, values, visible, jnp.clip(distance, 0, self.window))
        x = self.gate_attention(asking, nn.relu(attended))
        y = self.gate_mlp(x, nn.relu(self.narrow(nn.relu(self.widen(self.norm_mlp(x))))))
        return last, y[:num_steps], None if successor is None else y[num_steps:]

    def _attend(
        self, asking: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array, distance: jax.Array
    ) -> jax.Array:
        """Attention `[Q, N, size]` of each of `asking` to itself and to the earlier inputs that it may see."""
        asking = self.norm_attention(asking)
        query = self.query(asking) / math.sqrt(self.size // self.num_heads)
        scores = jnp.einsum("qnhd,knhd->nhqk", query, keys) + self.distance_bias[:, distance]
        # A large finite number, not -inf: a step that sees nothing but itself keeps finite gradients.
        scores = jnp.where(jnp.moveaxis(visible, -1, 0)[:, None], scores, -1e9)
        own_score = jnp.einsum("qnhd,qnhd->nhq", query, self.key(asking)) + self.distance_bias[:, :1]
        weights = nn.softmax(jnp.concatenate([scores, own_score[..., None]], axis=-1))
        earlier = jnp.einsum("nhqk,knhd->qnhd", weights[..., :-1], values)
        own = jnp.moveaxis(weights[..., -1:], 2, 0) * self.value(asking)
        return self.outputs(earlier + own)


class Gate(nn.Module):
    """The paper's gate, a gated recurrent unit: `(x, y) -> (1 - z) x + z h`, near x at the start."""

    size: int

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        keep, update, change = (nn.Dense(self.size, name=f"from_{name}") for name in ("r", "z", "h"))
        keep_old, update_old, change_old = (
            nn.Dense(self.size, use_bias=False, name=f"to_{name}") for name in ("r", "z", "h")
        )
        r = nn.sigmoid(keep(y) + keep_old(x))
        z = nn.sigmoid(update(y) + update_old(x) - 2.0)
        return (1.0 - z) * x + z * jnp.tanh(change(y) + change_old(r * x))
