"""Cases: Keras's layers, in models as small as can be."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tests.multi.zoo import Case, arrays, compiled, floats, integers, kind, stack

layer_kind = kind("Layers")
CROSSENTROPY = "sparse_categorical_crossentropy"


def _regression(shape: tuple[int, ...], *middle: keras.layers.Layer, flat: bool = True) -> keras.Model:
    return compiled(stack(shape, *middle, *([layers.Flatten()] if flat else []), layers.Dense(1)))


@layer_kind
def lstm() -> Case:
    """LSTM with dropout and recurrent dropout."""
    build = lambda: _regression((5, 3), layers.LSTM(4, dropout=0.2, recurrent_dropout=0.2))  # noqa: E731
    return Case(build, arrays(floats(5, 3), floats(1, seed=2)))


@layer_kind
def gru() -> Case:
    """GRU over GRU, sequences between them."""
    build = lambda: _regression((5, 3), layers.GRU(4, return_sequences=True), layers.GRU(3))  # noqa: E731
    return Case(build, arrays(floats(5, 3), floats(1, seed=2)))


@layer_kind
def bidirectional() -> Case:
    """Bidirectional LSTM."""
    build = lambda: _regression((5, 3), layers.Bidirectional(layers.LSTM(3)))  # noqa: E731
    return Case(build, arrays(floats(5, 3), floats(1, seed=2)))


@layer_kind
def masked_lstm() -> Case:
    """Masking under an LSTM."""
    x = floats(5, 3)
    x[::2, 3:] = 0
    return Case(lambda: _regression((5, 3), layers.Masking(), layers.LSTM(4)), arrays(x, floats(1, seed=2)))


@layer_kind
def stacked_cells() -> Case:
    """RNN over stacked cells; TimeDistributed; ConvLSTM1D."""

    def build() -> keras.Model:
        cells = layers.StackedRNNCells([layers.LSTMCell(4), layers.GRUCell(3), layers.SimpleRNNCell(3)])
        images = layers.ConvLSTM1D(2, 3, padding="same", return_sequences=True)
        return _regression((4, 3, 1), images, layers.TimeDistributed(layers.Flatten()), layers.RNN(cells))

    return Case(build, arrays(floats(4, 3, 1), floats(1, seed=2)))


@layer_kind
def embedding() -> Case:
    """Embedding, whose gradients are rows, words repeated."""

    def build() -> keras.Model:
        model = stack((6,), layers.Embedding(11, 4), layers.GlobalAveragePooling1D(), layers.Dense(1))
        return compiled(model, optimizer=keras.optimizers.Adam(0.01))

    return Case(build, arrays(integers(11, 6), floats(1)))


@layer_kind
def embedding_masked() -> Case:
    """Embedding with `mask_zero`, an LSTM and a loss for each step, averaged over what the mask leaves."""

    def build() -> keras.Model:
        steps = [layers.LSTM(4, return_sequences=True), layers.Dense(3, activation="softmax")]
        model = stack((6,), layers.Embedding(11, 4, mask_zero=True), *steps)
        return compiled(model, CROSSENTROPY, metrics=["accuracy"])

    words = integers(11, 6)
    for row, length in enumerate(integers(6)):
        words[row, length + 1 :] = 0
    return Case(build, arrays(words, integers(3, 6, seed=2)))


@layer_kind
def reversible_embedding() -> Case:
    """An embedding that is also the output's kernel (tied weights)."""

    def build() -> keras.Model:
        words = keras.Input((4,), dtype="int32")
        embedding = layers.ReversibleEmbedding(7, 4)
        scores = embedding(layers.Dense(4)(embedding(words)), reverse=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return compiled(keras.Model(words, scores), loss)

    words = integers(7, 4)
    return Case(build, arrays(words, np.roll(words, -1, axis=1)))


@layer_kind
def attention() -> Case:
    """Attention, AdditiveAttention, multi-head and grouped-query attention."""

    def build() -> keras.Model:
        inputs = keras.Input((5, 4))
        hidden = layers.MultiHeadAttention(2, 3, dropout=0.1)(inputs, inputs, use_causal_mask=True)
        hidden = layers.GroupQueryAttention(2, 4, 2)(hidden, hidden)
        hidden = layers.Attention(use_scale=True)([hidden, inputs]) + layers.AdditiveAttention()([hidden, inputs])
        return compiled(keras.Model(inputs, layers.Dense(1)(layers.Flatten()(hidden))))

    return Case(build, arrays(floats(5, 4), floats(1, seed=2)))


@layer_kind
def transformer() -> Case:
    """A small Transformer over words with a mask."""

    def build() -> keras.Model:
        words = keras.Input((6,), dtype="int32")
        hidden = layers.Embedding(11, 4, mask_zero=True)(words)
        hidden = hidden + layers.Embedding(6, 4)(keras.ops.arange(6))
        for _ in range(2):
            attended = layers.MultiHeadAttention(2, 2, dropout=0.1)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden + attended)
            forward = layers.Dense(4)(layers.Dense(8, activation="gelu")(hidden))
            hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(forward))
        pooled = layers.GlobalAveragePooling1D()(hidden)
        model = keras.Model(words, layers.Dense(3, activation="softmax")(pooled))
        return compiled(model, CROSSENTROPY, keras.optimizers.AdamW(0.01), metrics=["accuracy"])

    words = integers(11, 6)
    words[::3, 4:] = 0
    return Case(build, arrays(words, integers(3)))


@layer_kind
def conv1d() -> Case:
    """Conv1D, separable, depthwise and transposed, with pooling."""

    def build() -> keras.Model:
        convolutions = [layers.SeparableConv1D(4, 3), layers.DepthwiseConv1D(2), layers.Conv1DTranspose(2, 2)]
        return _regression((9, 2), layers.Conv1D(3, 2, padding="causal"), layers.MaxPooling1D(2), *convolutions)

    return Case(build, arrays(floats(9, 2), floats(1, seed=2)))


@layer_kind
def conv2d() -> Case:
    """Conv2D, separable, depthwise, dilated and in groups, with pooling."""

    def build() -> keras.Model:
        convolutions = [layers.SeparableConv2D(4, 3), layers.DepthwiseConv2D(2), layers.Conv2D(4, 2, groups=2)]
        return _regression((9, 9, 2), layers.Conv2D(4, 2, dilation_rate=2), *convolutions, layers.AveragePooling2D(2))

    return Case(build, arrays(floats(9, 9, 2), floats(1, seed=2)))


@layer_kind
def conv3d() -> Case:
    """Conv3D and its transposed form."""

    def build() -> keras.Model:
        return _regression((4, 4, 4, 1), layers.Conv3D(2, 2, activation="relu"), layers.Conv3DTranspose(2, 2))

    return Case(build, arrays(floats(4, 4, 4, 1), floats(1, seed=2)))


@layer_kind
def batch_normalization() -> Case:
    """BatchNormalization, training."""

    def build() -> keras.Model:
        convolution = layers.Conv2D(4, 3, use_bias=False)
        head = [layers.ReLU(), layers.GlobalMaxPooling2D(), layers.BatchNormalization(momentum=0.5, center=False)]
        return _regression((6, 6, 2), convolution, layers.BatchNormalization(), *head)

    return Case(build, arrays(floats(6, 6, 2), floats(1, seed=2)))


@layer_kind
def batch_normalization_masked() -> Case:
    """BatchNormalization of masked steps."""
    x = floats(5, 3)
    x[::2, 3:] = 0
    build = lambda: _regression((5, 3), layers.Masking(), layers.BatchNormalization(), layers.LSTM(2))  # noqa: E731
    return Case(build, arrays(x, floats(1, seed=2)))


@layer_kind
def batch_normalization_frozen() -> Case:
    """BatchNormalization, frozen."""

    def build() -> keras.Model:
        norm = layers.BatchNormalization(moving_mean_initializer="ones")
        norm.trainable = False
        return _regression((4,), layers.Dense(5), norm, flat=False)

    return Case(build, arrays(floats(4), floats(1, seed=2)))


@layer_kind
def normalizations() -> Case:
    """Group, layer, unit and RMS normalization."""

    def build() -> keras.Model:
        norms = [layers.GroupNormalization(2), layers.LayerNormalization(), layers.UnitNormalization()]
        return _regression((5, 4), layers.Dense(4), *norms, layers.RMSNormalization())

    return Case(build, arrays(floats(5, 4), floats(1, seed=2)))


@layer_kind
def spectral_normalization() -> Case:
    """SpectralNormalization of a convolution and a Dense layer."""

    def build() -> keras.Model:
        wrapped = layers.SpectralNormalization(layers.Conv2D(3, 3))
        return compiled(stack((5, 5, 1), wrapped, layers.Flatten(), layers.SpectralNormalization(layers.Dense(1))))

    return Case(build, arrays(floats(5, 5, 1), floats(1, seed=2)))


@layer_kind
def dropouts() -> Case:
    """Dropout, AlphaDropout, GaussianDropout, SpatialDropout1D; one with a seed and one with a noise shape."""

    def build() -> keras.Model:
        kinds = [layers.Dropout(0.2, noise_shape=(None, 1, 4)), layers.AlphaDropout(0.2), layers.GaussianDropout(0.2)]
        return _regression((5, 3), layers.Dense(4), *kinds, layers.SpatialDropout1D(0.2), layers.Dropout(0.1, seed=7))

    return Case(build, arrays(floats(5, 3), floats(1, seed=2)))


@layer_kind
def spatial_dropouts() -> Case:
    """SpatialDropout2D and 3D."""

    def build() -> keras.Model:
        to_3d = layers.Reshape((2, 2, 4, 3))
        return _regression((4, 4, 3), layers.SpatialDropout2D(0.3), to_3d, layers.SpatialDropout3D(0.3))

    return Case(build, arrays(floats(4, 4, 3), floats(1, seed=2)))


@layer_kind
def noise_and_activations() -> Case:
    """GaussianNoise, PReLU, ActivityRegularization, EinsumDense."""

    def build() -> keras.Model:
        einsum = layers.EinsumDense("ab,bc->ac", output_shape=5, bias_axes="c")
        return _regression((4,), layers.GaussianNoise(0.3), einsum, layers.PReLU(), layers.ActivityRegularization(0.01))

    return Case(build, arrays(floats(4), floats(1, seed=2)))
