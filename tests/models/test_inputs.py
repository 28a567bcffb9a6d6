"""How models read stored examples: normalized always, cropped and flipped in training only, keyed by the trip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from refusals import refuses

import jafl
from jafl.data import Federation, Normalization, Partition, digits
from jafl.models import Inputs

IMAGES = np.random.default_rng(0).integers(0, 256, (64, 8, 10, 3), np.uint8)
WORDS = np.array([7, 11], np.uint32)
PLACES = np.arange(64, dtype=np.int32)
AUGMENTED = Inputs(random_crop=2, random_flip=True)


def augmented(inputs=AUGMENTED, words=WORDS, epoch=0, places=PLACES, x=IMAGES):
    return np.asarray(
        inputs.augment(jnp.asarray(x), jnp.asarray(words), jnp.int32(epoch), jnp.asarray(places))
    )


def test_normalizes_by_channel_in_the_type_asked_for():
    inputs = Inputs(Normalization((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)))
    found = np.asarray(inputs.normalize(jnp.asarray(IMAGES)))
    expected = (IMAGES.astype(np.float32) - np.float32([1, 2, 3])) / np.float32([4, 5, 6])
    np.testing.assert_allclose(found, expected, rtol=2e-7)
    assert found.dtype == np.float32
    half = Inputs(Normalization((127.5,), (127.5,))).normalize(np.uint8([[0, 255]]))
    np.testing.assert_array_equal(half, [[-1, 1]])
    assert Inputs().normalize(IMAGES) is IMAGES


def shifts(found: np.ndarray, image: np.ndarray, border: int) -> set[tuple[int, int, bool]]:
    """All (top, left, mirrored) that make ``found`` of ``image``."""
    made = set()
    for mirrored in (False, True):
        padded = np.pad(image[:, ::-1] if mirrored else image, ((border, border), (border, border), (0, 0)))
        for top in range(2 * border + 1):
            for left in range(2 * border + 1):
                window = padded[top : top + image.shape[0], left : left + image.shape[1]]
                if np.array_equal(window, found):
                    made.add((top, left, mirrored))
    return made


@pytest.mark.full
def test_every_image_is_cropped_out_of_its_padded_and_perhaps_mirrored_self():
    seen = set()
    for epoch in range(8):
        for before, after in zip(IMAGES, augmented(epoch=epoch), strict=True):
            (how,) = shifts(after, before, 2)
            seen.add(how)
    assert seen == {(top, left, flip) for top in range(5) for left in range(5) for flip in (False, True)}


def test_flips_half_of_the_images_and_shifts_evenly():
    x = np.zeros((4000, 5, 5, 1), np.uint8)
    x[:, 2, 3] = 1
    places = np.arange(4000, dtype=np.int32)
    flipped = augmented(Inputs(random_flip=True), x=x, places=places)[:, 2, 1, 0]
    assert flipped.mean() == pytest.approx(0.5, abs=0.03)
    rows = augmented(Inputs(random_crop=1), x=x, places=places).argmax(axis=1).max(axis=(1, 2))
    np.testing.assert_allclose(np.bincount(rows)[1:] / 4000, 1 / 3, atol=0.03)


@pytest.mark.full
def test_draws_depend_on_trip_epoch_and_place_alone():
    first = augmented()
    np.testing.assert_array_equal(first, augmented())
    some = [40, 3, 17]
    np.testing.assert_array_equal(first[some], augmented(x=IMAGES[some], places=PLACES[some]))
    for changed in ({"words": WORDS + 1}, {"epoch": 1}, {"places": PLACES + 64}):
        assert np.mean(augmented(**changed) == first) < 0.5
    assert first.dtype == np.uint8


def federation_of(x):
    y = np.arange(len(x)) % 4
    return Federation.from_arrays(x, y, Partition.from_lists([range(32), range(32, 64)]), test_x=x, test_y=y)


@pytest.mark.full
@pytest.mark.parametrize(
    "batch_size", [16, *(pytest.param(size, marks=pytest.mark.full) for size in (0, 200))]
)
def test_a_trip_trains_on_the_augmented_images_and_evaluation_on_plain_ones(batch_size):
    federation = federation_of(IMAGES)
    inputs = Inputs(Normalization((127.5,), (127.5,)), random_crop=2, random_flip=True)
    import dataclasses

    model = dataclasses.replace(jafl.models.softmax(4), inputs=inputs)
    params = model.init(jax.random.key(0), IMAGES)
    work = jafl.client_work(model, learning_rate=0.1, batch_size=batch_size).build()
    from jafl.clients.records import ClientData

    held = federation.partition
    data = ClientData(
        jnp.asarray(IMAGES),
        jnp.asarray(federation.y),
        jnp.asarray(held.indices, jnp.int32),
        jnp.asarray(held.offsets, jnp.int32),
    )
    result = jax.jit(work.train)(data, params, jnp.int32(1), jnp.asarray(WORDS))
    # The same by hand: which examples, in which order, and what happens to each.
    size = batch_size or 32
    places = np.arange(min(size, 32), dtype=np.int32)
    if batch_size:
        from jafl.base.keyed_shuffle import shuffled

        order = np.asarray(jax.jit(shuffled)(places, jnp.int32(32), jnp.asarray(WORDS), jnp.int32(0)))
    else:
        order = places
    x = augmented(inputs, places=places, x=IMAGES[32:][order])
    flat = ((x.astype(np.float64) - 127.5) / 127.5).reshape(len(x), -1)
    wrong = np.full((len(x), 4), 0.25)
    wrong[np.arange(len(x)), federation.y[32:][order]] -= 1
    np.testing.assert_allclose(result.update["dense"]["kernel"], -0.1 * flat.T @ wrong / len(x), atol=1e-6)
    plain = (IMAGES.astype(np.float32) - 127.5) / 127.5
    np.testing.assert_allclose(
        model.apply(result.update, IMAGES),
        plain.reshape(64, -1) @ result.update["dense"]["kernel"] + result.update["dense"]["bias"],
        rtol=1e-4,
        atol=1e-5,
    )
    assert not model.as_evaluated().inputs.random
    assert model.as_evaluated().inputs.normalization == inputs.normalization


def test_inputs_of_a_source():
    source = digits()
    assert Inputs.of(source, random_crop=1) == Inputs(None, 1)
    with refuses("random_crop is 2", "left out", "no images"):
        Inputs.of(jafl.data.synthetic(num_clients=2, alpha=0, beta=0), random_crop=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Inputs(random_crop=-1), ("random_crop is -1", "at least 0")),
        (lambda: Inputs(dtype="float16"), ("'float16'", "float32 or float64")),
        (lambda: Normalization((1.0, 2.0), (1.0,)), ("mean and std", "equally many")),
        (lambda: Normalization((0.0,), (0.0,)), ("std is (0.0,)", "above 0")),
        (lambda: Normalization((float("nan"),), (1.0,)), ("mean is", "finite")),
    ],
)
def test_refuses_what_cannot_work(make, message):
    with refuses(*message):
        make()
