"""Tokens: the arrays of a batch that all parts of the model read."""

from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Tokens:
    """Rows of tokens. A row is one sequence or packs several; all arrays are int32.

    input_ids: tokens, (B, L).
    token_type_ids: 0 for sentence A and 1 for sentence B, (B, L).
    segment_ids: number of each token's sequence in the row, from 1; 0 for padding, (B, L).
    starts: position of the first token of each sequence, (B, S).

    The vectors of a sequence do not depend on the other sequences of its row.
    """

    input_ids: jax.Array
    token_type_ids: jax.Array
    segment_ids: jax.Array
    starts: jax.Array

    @classmethod
    def of_mask(
        cls,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
    ) -> "Tokens":
        """Rows of one sequence each. attention_mask_BL: 1 for tokens, 0 for padding.

        Padding must follow the tokens, because the position of a token is its place in the
        row. (RoBERTa in transformers counts the tokens before it, even if padding is on the
        left or between tokens.)
        """
        segment_ids_BL = jnp.asarray(attention_mask_BL, jnp.int32)
        starts_BS = jnp.zeros_like(segment_ids_BL[:, :1])
        return cls(input_ids_BL, token_type_ids_BL, segment_ids_BL, starts_BS)

    @classmethod
    def of_batch(cls, batch: Mapping[str, jax.Array]) -> "Tokens":
        """The tokens of a batch of data/pipeline.py or data/batching.py.

        Without "starts" a row is one sequence.
        """
        arrays = [batch["input_ids"], batch["token_type_ids"]]
        if "starts" in batch:
            return cls(*arrays, batch["segment_ids"], batch["starts"])
        return cls.of_mask(*arrays, batch["attention_mask"])

    @property
    def lasts(self) -> jax.Array:
        """The position of each sequence's last token, (B, S)."""
        lengths_BS = jnp.sum(self._in_sequence(), axis=1)
        return self.starts + jnp.maximum(lengths_BS - 1, 0)

    @property
    def positions(self) -> jax.Array:
        """The position of each token in its sequence, (B, L)."""
        index_BL = jnp.maximum(self.segment_ids - 1, 0)
        places_L = jnp.arange(self.segment_ids.shape[1])
        return places_L[None] - jnp.take_along_axis(self.starts, index_BL, axis=1)

    def attends(
        self,
        positions_BQ: jax.Array | None = None,
        causal: bool = False,
        window: int = 0,
    ) -> jax.Array:
        """Whether the token at each position attends to each token: bool (B, Q, L).

        A token attends to its sequence. Padding attends to the first sequence.
        positions_BQ: positions in the row. None for all positions. causal: whether tokens
        attend only to themselves and to earlier tokens. window: see LayerPattern.
        """
        query_ids_BQ = take_positions(self.query_ids, positions_BQ)
        attends_BQL = query_ids_BQ[:, :, None] == self.segment_ids[:, None, :]
        if causal or window:
            places_L = jnp.arange(self.segment_ids.shape[1])
            places_BL = jnp.broadcast_to(places_L[None], self.segment_ids.shape)
            places_BQ = take_positions(places_BL, positions_BQ)
            distance_BQL = places_L[None, None, :] - places_BQ[:, :, None]
            attends_BQL &= in_reach(distance_BQL, causal, window)
        return attends_BQL

    @property
    def query_ids(self) -> jax.Array:
        """Number of the sequence to which a token attends, (B, L)."""
        return jnp.maximum(self.segment_ids, 1)

    def mean(self, x_BLD: jax.Array) -> jax.Array:
        """The mean of each sequence's vectors, float32 (B, S, D). 0 without tokens."""
        belongs_BLS = self._in_sequence().astype(jnp.float32)
        sums_BSD = jnp.einsum(
            "BLD,BLS->BSD", x_BLD.astype(jnp.float32), belongs_BLS, precision="highest"
        )
        return sums_BSD / jnp.maximum(belongs_BLS.sum(axis=1), 1)[..., None]

    def without_first(self, count: int) -> "Tokens":
        """The tokens with the first ``count`` of each sequence as padding, for pooling."""
        is_kept_BL = self.positions >= count
        segment_ids_BL = jnp.where(is_kept_BL, self.segment_ids, 0)
        starts_BS = jnp.minimum(self.starts + count, self.lasts)
        return self.replace(segment_ids=segment_ids_BL, starts=starts_BS)

    def _in_sequence(self) -> jax.Array:
        """Whether each token belongs to each sequence: bool (B, L, S)."""
        numbers_S = jnp.arange(1, self.starts.shape[1] + 1)
        return self.segment_ids[:, :, None] == numbers_S[None, None, :]


def in_reach(distance: jax.Array, causal: bool, window: int) -> jax.Array:
    """Whether a token may attend to the token that is ``distance`` places after it."""
    reach = jnp.ones_like(distance, bool)
    if causal:
        reach &= distance <= 0
    if window:
        reach &= jnp.abs(distance) <= window
    return reach


def take_positions(x_BL: jax.Array, positions_BQ: jax.Array | None) -> jax.Array:
    """``x_BL``, (B, L, ...), at ``positions_BQ``: (B, Q, ...). None for all positions."""
    if positions_BQ is None:
        return x_BL
    rest = range(2, x_BL.ndim)
    return jnp.take_along_axis(x_BL, jnp.expand_dims(positions_BQ, rest), axis=1)
