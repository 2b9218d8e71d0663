"""BERT, from the embeddings to the logits of MLM and NSP (paper, section 3; modeling.py).

The modules are in the order in which a batch passes them: Embeddings, SelfAttention, the
blocks, Encoder, BertModel with its pooler, and BertForPreTraining with its two heads.

A Flax module has no parameters of its own: ``init`` makes them, and ``apply`` takes them.

    >>> model = BertModel(BertConfig.base())
    >>> inputs = input_ids_BL, token_type_ids_BL, attention_mask_BL
    >>> variables = model.init(jax.random.key(0), *inputs, deterministic=True)
    >>> output = model.apply(variables, *inputs, deterministic=True)

Names of arrays end in their shape, such as x_BLD for (B, L, D). model/config.py explains
the letters. ``split(x_BLD, "BLD")`` sets how an array is split over devices. It changes no
values, and has no effect without a mesh.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.config import (
    MASKED_SCORE,
    BertConfig,
    ComputeConfig,
    LayerPattern,
)
from bert_jax.model.device import activation_dtype, is_plain
from bert_jax.model.kernels import attention as kernels
from bert_jax.model.layers import (
    POOLER_ACTIVATIONS,
    Dropout,
    activation,
    dense,
    drop,
    for_product,
    layer_norm,
    product,
    rotated,
    sinusoids,
    split,
    table,
    unchanged,
)
from bert_jax.model.parameters import stack_name
from bert_jax.model.tokens import Tokens, take_positions
from bert_jax.model.window import attend_in_blocks

# Arrays that a layer keeps for the backward pass, by ComputeConfig.remat. None: only its
# input. "dots" keeps the products with kernels, which, unlike attention's, have no batch
# dimensions.
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
}

# Logit of rows of the word table that do not belong to a token; see BertConfig.word_rows.
PADDING_LOGIT = -1e9


class Embeddings(nn.Module):
    """Word + token type + position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        config, compute = self.config, self.compute
        self.word = table(config, config.vocab_size, config.word_rows)
        self.segment = _no_vectors
        if config.type_vocab_size:
            self.segment = table(config, config.type_vocab_size)
        if config.positions == "learned":
            self.position = table(config, config.position_rows)
        elif config.positions == "sinusoidal":
            self.position = functools.partial(jnp.take, sinusoids(config), axis=0)
        else:
            self.position = _no_vectors
        self.norm = layer_norm(config, compute)
        if config.pre_norm and not config.embedding_norm:
            self.norm = unchanged
        self.dropout = Dropout(config.hidden_dropout, compute.dropout_impl)

    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """The sum of the three vectors, normalised: (B, L, D) in the compute dtype."""
        x_BLD = self.word(tokens.input_ids) + self.segment(tokens.token_type_ids)
        x_BLD += self.position(tokens.positions + self.config.position_offset)
        # Cast after the lookups, so that gradients of the tables are summed in float32.
        x_BLD = self.norm(x_BLD.astype(activation_dtype(self.compute.dtype)))
        return self.dropout(x_BLD, deterministic)


def _no_vectors(ids_BL: jax.Array) -> jax.Array:
    """Zeros in place of vectors, (B, L, 1)."""
    return jnp.zeros((*ids_BL.shape, 1))


def attend_plain(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attends_BQL: jax.Array,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    dropout_impl: str = "auto",
) -> jax.Array:
    """softmax(q k / sqrt(H)) v over the keys to which a query attends: (B, Q, N, H).

    attends_BQL: bool, whether a query attends to a key. dropout_key: key for dropout of the
    probabilities. None: no dropout. dropout_impl: see ComputeConfig. Scores and softmax are
    float32.
    """
    probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
    if dropout_key is not None:
        probs_BNQL = drop(probs_BNQL, dropout_rate, dropout_key, dropout_impl)
    return jnp.einsum("BNQL,BLNH->BQNH", probs_BNQL.astype(v_BLNH.dtype), v_BLNH)


def attend_in_rows(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    tokens: Tokens,
    positions_BQ: jax.Array | None,
    *,
    causal: bool,
    window: int,
    **dropout: Any,
) -> jax.Array:
    """:func:`attend_plain` for the queries at ``positions_BQ`` of rows: (B, Q, N, H)."""
    attends_BQL = tokens.attends(positions_BQ, causal, window)
    return attend_plain(q_BQNH, k_BLNH, v_BLNH, attends_BQL, **dropout)


def attend_in_window(
    q_BLNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    tokens: Tokens,
    positions_BQ: None,
    *,
    causal: bool,
    window: int,
    **dropout: Any,
) -> jax.Array:
    """:func:`attend_plain` in blocks of rows, for the queries at all positions."""
    attend = functools.partial(attend_plain, **dropout)
    return attend_in_blocks(
        attend, q_BLNH, k_BLNH, v_BLNH, tokens, window=window, causal=causal
    )


def probabilities(
    q_BQNH: jax.Array, k_BLNH: jax.Array, attends_BQL: jax.Array
) -> jax.Array:
    """The softmax of :func:`attend_plain`, float32 (B, N, Q, L)."""
    scores_BNQL = jnp.einsum(
        "BQNH,BLNH->BNQL", q_BQNH, k_BLNH, preferred_element_type=jnp.float32
    )
    bias_BQL = jnp.where(attends_BQL, 0.0, MASKED_SCORE)
    return jax.nn.softmax(scores_BNQL / q_BQNH.shape[-1] ** 0.5 + bias_BQL[:, None])


def without_rotation(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    *positions: Tokens | jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys of a model whose positions are in the embeddings."""
    return q_BQNH, k_BLNH


def with_rotation(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    tokens: Tokens,
    positions_BQ: jax.Array | None,
    *,
    theta: float,
    factor: float,
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys with rotary positions, which count from the start of a sequence."""
    places_BL = tokens.positions
    places_BQ = take_positions(places_BL, positions_BQ)
    q_BQNH = rotated(q_BQNH, places_BQ, theta, factor)
    return q_BQNH, rotated(k_BLNH, places_BL, theta, factor)


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, attends, and projects back."""

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool
    pattern: LayerPattern = LayerPattern()

    def setup(self):
        config, compute, pattern = self.config, self.compute, self.pattern
        self.with_positions = without_rotation
        if config.positions == "rotary":
            self.with_positions = functools.partial(
                with_rotation, theta=pattern.rope_theta, factor=config.rope_factor
            )
        form = attend_in_rows
        if pattern.window:
            form = attend_in_window
        if not is_plain(compute.attention_impl):
            # If a kernel does not fit, training fails and inference replaces it.
            form = functools.partial(
                kernels.attend,
                implementation=compute.attention_impl,
                required=not self.deterministic,
            )
        self.attend = functools.partial(
            form,
            causal=config.causal,
            window=pattern.window,
            dropout_rate=config.attention_dropout,
            dropout_impl=compute.dropout_impl,
        )

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
    ) -> jax.Array:
        """Attention of the tokens at ``positions_BQ``, None for all tokens: (B, Q, D).

        With a window, positions_BQ must be None. ``apply(..., mutable=["attention"])`` also
        returns the probabilities before dropout, (B, N, Q, L).
        """
        config, compute = self.config, self.compute
        heads = (config.num_heads, config.head_size)
        part = functools.partial(dense, config, compute, has_bias=config.attention_bias)
        x_BQD = take_positions(x_BLD, positions_BQ)
        q_BQNH = part(heads, name="query")(x_BQD)
        k_BLNH = part(heads, name="key")(x_BLD)
        v_BLNH = part(heads, name="value")(x_BLD)
        q_BQNH, k_BLNH = self.with_positions(q_BQNH, k_BLNH, tokens, positions_BQ)
        if self.is_mutable_collection("attention") and not self.is_initializing():
            attends_BQL = tokens.attends(
                positions_BQ, config.causal, self.pattern.window
            )
            probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
            self.sow("attention", "probabilities", probs_BNQL)
        dropout_key = None
        if config.attention_dropout and not self.deterministic:
            dropout_key = self.make_rng("dropout")
        context_BQNH = self.attend(
            q_BQNH, k_BLNH, v_BLNH, tokens, positions_BQ, dropout_key=dropout_key
        )
        D = config.hidden_size
        return part(D, axis=(-2, -1), name="output", is_output=True)(context_BQNH)


class Block(nn.Module):
    """The parts of a layer. A subclass defines the order in which they are applied."""

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool
    pattern: LayerPattern = LayerPattern()

    def setup(self):
        config, compute = self.config, self.compute
        self.attention = SelfAttention(
            config, compute, self.deterministic, self.pattern
        )
        self.attention_norm = layer_norm(config, compute)
        if not self.pattern.attention_norm:
            self.attention_norm = unchanged
        D, F = config.hidden_size, config.intermediate_size
        biases = config.feed_forward_bias
        self.intermediate = dense(config, compute, F, has_bias=biases == "all")
        self.activation = activation(config)
        self.activated = self.without_gate
        if config.gated:
            self.gate = dense(config, compute, F, has_bias=biases == "all")
            self.activated = self.with_gate
        self.feed_forward_output = dense(
            config, compute, D, has_bias=biases != "none", is_output=True
        )
        self.feed_forward_norm = layer_norm(config, compute)
        self.dropout = Dropout(config.hidden_dropout, compute.dropout_impl)

    def attend(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None
    ) -> jax.Array:
        """Attention and dropout: (B, Q, D)."""
        attn_BQD = self.attention(x_BLD, tokens, positions_BQ)
        return self.dropout(attn_BQD, self.deterministic)

    def feed_forward(self, x_BQD: jax.Array) -> jax.Array:
        """The feed-forward layer and dropout: (B, Q, D)."""
        h_BQF = self.activated(x_BQD)
        return self.dropout(self.feed_forward_output(h_BQF), self.deterministic)

    def without_gate(self, x_BQD: jax.Array) -> jax.Array:
        """The activated vectors of the feed-forward layer: (B, Q, F)."""
        return self.activation(self.intermediate(x_BQD))

    def with_gate(self, x_BQD: jax.Array) -> jax.Array:
        """The same, times another product (Shazeer, 2020): (B, Q, F)."""
        return self.activation(self.intermediate(x_BQD)) * self.gate(x_BQD)


class PostNormBlock(Block):
    """LayerNorm after each residual sum, as in the paper."""

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None = None
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, None for all positions: (B, Q, D)."""
        x_BLD = split(x_BLD, "BLD")
        attn_BQD = self.attend(x_BLD, tokens, positions_BQ)
        x_BQD = take_positions(x_BLD, positions_BQ)
        x_BQD = self.attention_norm(x_BQD + attn_BQD)
        x_BQD = self.feed_forward_norm(x_BQD + self.feed_forward(x_BQD))
        return split(x_BQD, "BQD")


class PreNormBlock(Block):
    """LayerNorm before attention and feed-forward, as in MegatronBert."""

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None = None
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, None for all positions: (B, Q, D)."""
        x_BLD = split(x_BLD, "BLD")
        attn_BQD = self.attend(self.attention_norm(x_BLD), tokens, positions_BQ)
        x_BQD = take_positions(x_BLD, positions_BQ)
        x_BQD += attn_BQD
        x_BQD += self.feed_forward(self.feed_forward_norm(x_BQD))
        return split(x_BQD, "BQD")


class Period(nn.Module):
    """Layers that follow one another. A scan repeats them."""

    layers: list[nn.Module]
    hidden_states: bool

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the output of the last layer, and the outputs of all layers or None."""
        outputs = []
        for layer in self.layers:
            x_BLD = layer(x_BLD, tokens)
            outputs.append(x_BLD)
        if not self.hidden_states:
            return x_BLD, None
        return x_BLD, jnp.stack(outputs)


class Encoder(nn.Module):
    """All layers. Their parameters are ``layer_0``, ``layer_1``, ..., or are stacked."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        if self.config.pre_norm:
            self.block = PreNormBlock
            self.final_norm = layer_norm(self.config, self.compute)
        else:
            self.block = PostNormBlock
            self.final_norm = unchanged

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
        hidden_states: bool = False,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the output of the last layer, and the hidden states or [].

        The hidden states are ``x_BLD`` and the output of every layer.
        positions_BQ: positions of the output of the last layer, (B, Q, D).
        Scanned layers are computed at all positions, because they share one program.
        """
        config, compute = self.config, self.compute
        make_layer = self._maker(deterministic)
        # A model may have fewer layers than a period of its pattern.
        if compute.scan_layers and config.scanned[0] < config.num_layers:
            return self._scanned(
                x_BLD, tokens, positions_BQ, hidden_states, deterministic=deterministic
            )
        states = [x_BLD]
        last = config.num_layers - 1
        for i in range(last):
            layer = make_layer(config.pattern(i), name=f"layer_{i}")
            states.append(layer(states[-1], tokens))
        pattern = config.pattern(last)
        layer = make_layer(pattern, name=f"layer_{last}")
        if pattern.window:  # its blocks contain the queries at all positions
            x_BQD = take_positions(layer(states[-1], tokens), positions_BQ)
        else:
            x_BQD = layer(states[-1], tokens, positions_BQ)
        x_BQD = self.final_norm(x_BQD)
        if not hidden_states:
            return x_BQD, []
        return x_BQD, [*states, x_BQD]

    def _maker(
        self, deterministic: bool, *, prevent_cse: bool = True
    ) -> Callable[..., nn.Module]:
        """A function that makes a layer.

        prevent_cse: whether the compiler must compute a layer again in the gradient, with
        compute.remat. Within a loop it does so in any case.
        """
        block, remat = self.block, self.compute.remat
        if remat != "none":
            policy = REMAT_POLICIES[remat]
            block = nn.remat(block, prevent_cse=prevent_cse, policy=policy)
        return functools.partial(block, self.config, self.compute, deterministic)

    def _scanned(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None,
        hidden_states: bool,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """:meth:`__call__` with a loop over periods of layers, with stacked parameters."""
        config = self.config
        first, period = config.scanned
        make_layer = self._maker(deterministic)
        make_repeated = self._maker(deterministic, prevent_cse=False)
        states = [x_BLD]
        for i in range(first):
            layer = make_layer(config.pattern(i), name=f"layer_{i}")
            states.append(layer(states[-1], tokens))
        layers = []
        for i in range(first, first + period):
            name = stack_name(i, period)
            layers.append(make_repeated(config.pattern(i), name=name))
        scan = nn.scan(
            Period,
            variable_axes={"params": 0, "intermediates": 0, "attention": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=(config.num_layers - first) // period,
        )
        last_BLD, outputs = scan(layers, hidden_states)(states[-1], tokens)
        x_BQD = self.final_norm(take_positions(last_BLD, positions_BQ))
        if not hidden_states:
            return x_BQD, []
        outputs = outputs.reshape(-1, *x_BLD.shape)
        return x_BQD, [*states, *outputs[:-1], x_BQD]


@flax.struct.dataclass
class EncoderOutput:
    """The output of BertModel, in the dtype of the activations.

    sequence_BLD: output of the last layer, (B, Q, D) if positions_BQ is given.
    pooled_BD: output of the pooler (config.pooler) for [CLS], for the last token of a
      causal model, or for the mean of all tokens (config.pooling). None if pool is False.
      ``encode`` returns it as (B, S, D), with a vector for each sequence. It is float32 if
      there is a pooler.
    hidden_states: the embeddings and the output of each layer. Empty by default.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None
    hidden_states: list[jax.Array]


class BertModel(nn.Module):
    """The encoder: embeddings, layers, pooler (modeling.py, BertModel)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config, compute = self.config, self.compute
        if config.encoder != "transformer":
            raise UserError(
                f"model.encoder={config.encoder} has another class; see "
                "bert_jax.objectives.networks.encoder_class"
            )
        self.embeddings = Embeddings(config, compute)
        self.encoder = Encoder(config, compute)
        self.pooler = self.token_transform = unchanged
        if config.pooler == "transform":
            self.pooler = self.token_transform = Transform(config, compute)
        elif config.pooler != "none":
            options = {"is_head": True, "has_bias": config.head_bias}
            self.pooler = dense(config, compute, config.hidden_size, **options)
        self.pooler_activation = POOLER_ACTIVATIONS[config.pooler]

    @staticmethod
    def width(config: BertConfig) -> int:
        """The width of a token's vector after the encoder."""
        return config.hidden_size

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        **options: Any,
    ) -> EncoderOutput:
        """Encodes rows with one sequence in each row. options: see :meth:`encode`.

        attention_mask_BL: 1 for tokens, 0 for padding.
        """
        tokens = Tokens.of_mask(input_ids_BL, token_type_ids_BL, attention_mask_BL)
        encoded = self.encode(tokens, **options)
        if encoded.pooled_BD is None:
            return encoded
        return encoded.replace(pooled_BD=encoded.pooled_BD[:, 0])

    def encode(
        self,
        tokens: Tokens,
        *,
        deterministic: bool,
        positions_BQ: jax.Array | None = None,
        pool: bool = True,
        hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes rows that may pack several sequences.

        deterministic: True for no dropout. False needs ``rngs={"dropout": key}``.
        positions_BQ: positions of the returned output. The last layer is computed only at
          these positions and at the pooled tokens. None for all positions.
        pool: whether to compute pooled_BD. ``init`` with pool=False makes no parameters of
          the pooler.
        hidden_states: whether to return the output of every layer.
        """
        config = self.config
        pooled_BS = pooled_positions(config, tokens)
        computed_BQ = positions_BQ
        if pool and config.pooling == "mean":
            computed_BQ = None  # the mean is of all tokens
        elif pool and positions_BQ is not None:
            computed_BQ = jnp.concatenate([pooled_BS, positions_BQ], axis=1)
        x_BLD, states = self.encoder(
            self.embeddings(tokens, deterministic=deterministic),
            tokens,
            computed_BQ,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        if not pool:
            return EncoderOutput(x_BLD, None, states)
        if config.pooling == "mean":
            vectors_BSD = tokens.mean(x_BLD).astype(x_BLD.dtype)
            x_BQD = take_positions(x_BLD, positions_BQ)
        elif positions_BQ is None:
            vectors_BSD = take_positions(x_BLD, pooled_BS)
            x_BQD = x_BLD
        else:
            S = pooled_BS.shape[1]
            vectors_BSD, x_BQD = jnp.split(x_BLD, [S], axis=1)
        pooled_BSD = split(self.pooler(split(vectors_BSD, "BSD")), "BSD")
        return EncoderOutput(x_BQD, self.pooler_activation(pooled_BSD), states)


def pooled_positions(config: BertConfig, tokens: Tokens) -> jax.Array:
    """The position of the token of each sequence that the pooler reads, (B, S).

    It is [CLS], or in a causal model the last token, which attends to all other tokens.
    """
    return tokens.lasts if config.causal else tokens.starts


def transformed(
    config: BertConfig, compute: ComputeConfig, x_BMD: jax.Array
) -> jax.Array:
    """Dense layer, activation and LayerNorm, with parameters in the calling module."""
    options = {"name": "transform", "has_bias": config.head_bias, "is_output": True}
    transform = dense(config, compute, config.hidden_size, **options)
    x_BMD = split(transform(split(x_BMD, "BMD")), "BMD")
    return layer_norm(config, compute, "norm")(activation(config)(x_BMD))


class Transform(nn.Module):
    """The first part of the MLM head, below a classifier of texts, tokens or answers."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(self, x_BMD: jax.Array) -> jax.Array:
        return transformed(self.config, self.compute, x_BMD)


class MlmHead(nn.Module):
    """Dense layer, activation, LayerNorm, product with the word table, and bias."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(self, x_BMD: jax.Array, words: nn.Embed) -> jax.Array:
        config, compute = self.config, self.compute
        x_BMD = transformed(config, compute, x_BMD)
        bias_V = self.param("output_bias", nn.initializers.zeros, (config.vocab_size,))
        padding = config.word_rows - config.vocab_size
        bias_W = jnp.pad(bias_V, (0, padding), constant_values=PADDING_LOGIT)
        logits_BMW = product(compute, jnp.float32)(
            x_BMD, for_product(words.embedding, compute), (((2,), (1,)), ((), ()))
        )
        return logits_BMW + bias_W[None, None, :]


class PreTrainingOutput(NamedTuple):
    """float32 logits of masked LM and of next sentence prediction.

    mlm_logits_BMW: one logit for each row of the word table. The rows that pad the table
      have PADDING_LOGIT, so their probability is 0. Losses keep these rows, because a
      smaller array would be a copy.
    nsp_logits_B2: class 0 is IsNext, class 1 is NotNext. ``BertForPreTraining.logits``
      returns them as (B, S, 2), two logits for each pair.
    """

    mlm_logits_BMW: jax.Array
    nsp_logits_B2: jax.Array


class BertForPreTraining(nn.Module):
    """BERT with the heads of MLM and NSP (run_pretraining.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.mlm = MlmHead(self.config, self.compute)
        self.nsp = dense(self.config, self.compute, 2, is_head=True)

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        mlm_positions_BM: jax.Array,
        *,
        deterministic: bool,
    ) -> PreTrainingOutput:
        """:meth:`logits` of rows with one sequence each. Arguments: see BertModel."""
        tokens = Tokens.of_mask(input_ids_BL, token_type_ids_BL, attention_mask_BL)
        output = self.logits(tokens, mlm_positions_BM, deterministic=deterministic)
        return output._replace(nsp_logits_B2=output.nsp_logits_B2[:, 0])

    def logits(
        self, tokens: Tokens, mlm_positions_BM: jax.Array, *, deterministic: bool
    ) -> PreTrainingOutput:
        """MLM logits at ``mlm_positions_BM`` of each row, and NSP logits of each pair."""
        encoded = self.bert.encode(
            tokens, positions_BQ=mlm_positions_BM, deterministic=deterministic
        )
        return PreTrainingOutput(
            mlm_logits_BMW=self.mlm(encoded.sequence_BLD, self.bert.embeddings.word),
            nsp_logits_B2=self.nsp(encoded.pooled_BD),
        )

    def lm_logits(
        self, tokens: Tokens, positions_BQ: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Predictions of the tokens at ``positions_BQ``, float32 logits (B, Q, W).

        A causal model predicts a token from the tokens before it. Ignore its logits for the
        first token of a sequence, which has no tokens before it. Any other model predicts
        from all tokens. The pooler and the NSP head may be absent.
        """
        x_BQD = self.lm_vectors(tokens, positions_BQ, deterministic=deterministic)
        return self.lm_head(x_BQD)

    def lm_vectors(
        self, tokens: Tokens, positions_BQ: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """The vectors (B, Q, D) from which :meth:`lm_logits` predicts."""
        before_BQ = positions_BQ
        if self.config.causal:
            before_BQ = jnp.maximum(positions_BQ - 1, 0)
        encoded = self.bert.encode(
            tokens, positions_BQ=before_BQ, pool=False, deterministic=deterministic
        )
        return encoded.sequence_BLD

    def lm_head(self, x_BQD: jax.Array) -> jax.Array:
        """float32 logits (B, Q, W) of vectors."""
        return self.mlm(x_BQD, self.bert.embeddings.word)
