"""Shapes, initial values and identities of the networks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks import (
    MLP,
    Actor,
    Critic,
    QNetwork,
    Torso,
    dueling_q,
    network_for,
)
from tests.refusals import refused


def start(net, obs):
    """Return the outputs and the initial parameters."""
    return jax.tree.map(np.asarray, jax.jit(net.init_with_output)(jax.random.key(1), obs))


@pytest.mark.parametrize(
    "network, shape, size",
    [
        ("nature", (84, 84, 4), 64 * 7 * 7),
        ("data_efficient", (84, 84, 4), 64 * 3 * 3),
        ("minatar", (10, 10, 6), 16 * 8 * 8),
    ],
)
def test_torsos_have_the_published_output_sizes(network, shape, size):
    obs = jax.ShapeDtypeStruct((2, *shape), jnp.uint8)
    out, _ = jax.eval_shape(Torso(network).init_with_output, jax.random.key(0), obs)
    assert out.shape == (2, size)


def test_network_is_chosen_by_shape():
    shapes = {(4,): "mlp", (10, 5): "mlp", (84, 84, 4): "nature", (10, 10, 7): "minatar"}
    shapes |= {(3, 3, 25): "minatar", (16, 7, 1): "minatar"}
    assert {shape: network_for(shape) for shape in shapes} == shapes
    with refused("(64, 64, 3)", "mlp", "nature", "minatar"):
        network_for((64, 64, 3))
    with refused("(2, 10, 3)", "minatar"):
        network_for((2, 10, 3))


def test_image_network_refuses_vectors():
    with refused("nature", "[H, W, C]", "(4,)", "auto"):
        start(QNetwork(3, "nature"), np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("network", ["nature", "data_efficient"])
def test_image_network_refuses_small_images(network):
    with refused(network, "(10, 10, 4)", "auto"):
        start(QNetwork(3, network), np.zeros((1, 10, 10, 4), np.float32))


PARTS = {
    "image": np.random.default_rng(0).integers(0, 256, (2, 4, 5, 1), np.uint8),
    "speed": np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32),
    "time": np.float32([1, 2]),
}


def features_by_hand(layer):
    """Return the features of PARTS: the image's six 3 x 3 patches, then the numbers."""
    image = np.lib.stride_tricks.sliding_window_view(PARTS["image"][..., 0] / 255.0, (3, 3), (1, 2))
    image = np.maximum(image.reshape(2, 6, 9) @ layer["kernel"] + layer["bias"], 0)
    return np.concatenate([image.reshape(2, -1), PARTS["speed"], PARTS["time"][:, None]], axis=1)


def perceptron(layers, x):
    *hidden, last = (layers[name] for name in sorted(layers))
    for layer in hidden:
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
    return x @ last["kernel"] + last["bias"]


@pytest.mark.parametrize(
    ("net", "inputs", "widths"),
    [
        (QNetwork(3, hidden=(7,)), (), (100, 128, 3)),  # hidden layer of an image
        (Actor(2, (7,)), (), (100, 7, 2)),
        (Critic((7,)), (np.float32([[1, 2], [3, 4]]),), (102, 7, 1)),
    ],
)
def test_observations_of_vector_and_image_are_concatenated(net, inputs, widths):
    out, params = jax.tree.map(
        np.asarray, jax.jit(net.init_with_output)(jax.random.key(1), PARTS, *inputs)
    )
    torso, layers = params["params"]["Torso_0"]["Dense_0"], params["params"]["MLP_0"]
    assert torso["kernel"].shape == (9, 16)
    shapes = [layers[name]["kernel"].shape for name in sorted(layers)]
    assert shapes == list(itertools.pairwise(widths))
    expected = perceptron(layers, np.concatenate([features_by_hand(torso), *inputs], axis=1))
    np.testing.assert_allclose(out, expected.reshape(out.shape), atol=1e-5)


def shapes_of(net, obs):
    params = jax.eval_shape(net.init, jax.random.key(0), obs)["params"]
    return {name: jax.tree.leaves(params[name])[-1].shape for name in sorted(params)}


def test_each_image_of_an_observation_has_its_own_network():
    small, large = np.zeros((1, 4, 4, 1), np.uint8), np.zeros((1, 36, 40, 3), np.uint8)
    obs = {"a": large, "b": small, "c": np.zeros((1, 2), np.float32)}
    found = shapes_of(QNetwork(3), obs)
    assert found == {"MLP_0": (512, 3), "Torso_0": (3, 3, 64, 64), "Torso_1": (9, 16)}
    assert shapes_of(QNetwork(3, "mlp", (8,)), obs) == {"MLP_0": (8, 3)}
    found = shapes_of(QNetwork(3, "data_efficient"), {"a": large, "c": obs["c"]})
    assert found == {"MLP_0": (256, 3), "Torso_0": (5, 5, 32, 64)}
    with refused("data_efficient", "(4, 4, 1)", "auto"):
        shapes_of(QNetwork(3, "data_efficient"), obs)
    with refused("nature", "[H, W, C]", "(2,)", "()", "auto"):
        shapes_of(QNetwork(3, "nature"), {"c": obs["c"], "d": np.zeros(1, np.float32)})
    with refused("(20, 4, 1)", "minatar"):
        shapes_of(Actor(3, (8,)), {"a": np.zeros((1, 20, 4, 1), np.uint8)})


def test_patch_convolution_is_a_convolution():
    obs = np.random.default_rng(0).normal(size=(2, 10, 10, 3)).astype(np.float32)
    out, params = start(Torso("minatar"), obs)
    layer = params["params"]["Dense_0"]
    kernel = layer["kernel"].reshape(3, 3, 3, 16).transpose(1, 2, 0, 3)  # CHWO -> HWCO
    expected = jax.lax.conv_general_dilated(
        obs, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    expected = np.maximum(expected + layer["bias"], 0)
    np.testing.assert_allclose(out, expected.reshape(2, -1), atol=1e-5)


def normalised(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("dueling", [False, True])
def test_layer_norm_follows_convolutions_and_hidden_layers(dueling):
    """It normalises the channels of every pixel, and leaves outputs as they are."""
    net, image = QNetwork(3, dueling=dueling, layer_norm=True), PARTS["image"]
    out, params = start(net, image)
    linear = lambda layer, x: x @ layer["kernel"] + layer["bias"]
    patches = np.lib.stride_tricks.sliding_window_view(image[..., 0] / 255.0, (3, 3), (1, 2))
    torso, heads = params["params"]["Torso_0"], params["params"]
    x = np.maximum(normalised(linear(torso["Dense_0"], patches.reshape(2, 6, 9))), 0)
    names = ("value", "advantages") if dueling else ("MLP_0",)
    values = [
        linear(
            heads[name]["Dense_1"],
            np.maximum(normalised(linear(heads[name]["Dense_0"], x.reshape(2, -1))), 0),
        )
        for name in names
    ]
    expected = dueling_q(*values) if dueling else values[0]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert set(heads[names[0]]) == {"Dense_0", "Dense_1", "LayerNorm_0"}


def test_images_are_scaled_to_unit_range():
    net = QNetwork(3, "minatar")
    image = np.random.default_rng(0).integers(0, 256, (1, 10, 10, 2), np.uint8)
    q, params = start(net, image)
    apply = jax.jit(net.apply)
    np.testing.assert_allclose(q, apply(params, np.float32(image / 255.0)), rtol=1e-5)
    mask = image > 100
    np.testing.assert_array_equal(apply(params, mask), apply(params, np.float32(mask)))


@pytest.mark.parametrize("network, fan_in", [("mlp", 400), ("minatar", 36)])
def test_layers_start_uniform_within_one_over_root_fan_in(network, fan_in):
    obs = np.zeros((1, 10, 10, 4), np.float32)
    params = start(QNetwork(3, network, hidden=(500,)), obs)[1]["params"]
    layer = params["MLP_0" if network == "mlp" else "Torso_0"]["Dense_0"]
    bound = fan_in**-0.5
    for leaf in layer.values():
        assert np.abs(leaf).max() <= bound
        assert np.abs(leaf).max() > 0.8 * bound
    np.testing.assert_allclose(layer["kernel"].std(), bound / 3**0.5, rtol=0.1)


def test_dueling_mean_is_the_value():
    q = np.asarray(dueling_q(np.float32([2.0]), np.float32([1.0, 5.0, 0.0])))
    np.testing.assert_allclose(q, [1.0, 5.0, 0.0])
    np.testing.assert_allclose(q.mean(), 2.0)


@pytest.mark.parametrize("activation", ["softsign", "tanh"])
def test_initial_values_of_the_refer_paper(activation):
    net = MLP((128, 128, 5), activation)
    params = start(net, np.zeros((1, 17), np.float32))[1]["params"]
    bounds = [0.2034190511, np.sqrt(6 / 256), 0.0088388348]  # two of Glorot, then 0.1 / sqrt(128)
    for number, bound in enumerate(bounds):
        layer = params[f"Dense_{number}"]
        assert 0.98 * bound < np.abs(layer["kernel"]).max() <= bound * (1 + 1e-6)
        np.testing.assert_allclose(layer["kernel"].std(), bound / np.sqrt(3), rtol=0.1)
        assert not layer["bias"].any()
