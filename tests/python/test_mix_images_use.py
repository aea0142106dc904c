"""`mix_images` among other steps and options: bad rows, streams, formats, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import draws
import numpy as np
import pyarrow as pa
import pytest
from support import forebay, write
from test_mix_images import BATCH, CHOICES, CLASSES, OPERATOR, OPS, SIZE, check, choices, load, png

import forebay as fb

torch = pytest.importorskip("torch")

ROWS = 40
BAD = {3, 4, 17, 30, 31, 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("used")
    columns = {
        "image": pa.array([b"junk" if r in BAD else png(r) for r in range(ROWS)], pa.binary()),
        "label": [r % CLASSES for r in range(ROWS)],
        "id": list(range(ROWS)),
        "name": [f"row {r}" for r in range(ROWS)],
        "tags": [list(range(r % 4)) for r in range(ROWS)],
        "real": [r / 2 for r in range(ROWS)],
        "flag": [r % 2 == 0 for r in range(ROWS)],
        "gaps": [None if r == 9 else r % CLASSES for r in range(ROWS)],
        "counts": pa.array([[r, 1] for r in range(ROWS)], pa.list_(pa.int64(), 2)),
    }
    write(folder / "x.parquet", columns, row_group_size=7)
    return str(folder)


def images(folder: str, *columns: str, good: bool = True, **how: Any) -> fb.Dataset:
    dataset = fb.read_parquet(folder, columns=["image", "label", "id", *columns])
    if good:
        dataset = dataset.filter(f"id NOT IN ({', '.join(map(str, BAD))})")
    return dataset.map_image("image", OPS, **{"mode": "RGB", **how})


def same(dataset: fb.Dataset, mixed: fb.Dataset, **options: Any) -> None:
    batches = zip(load(mixed, **options), load(dataset, **options), strict=True)
    for step, (batch, before) in enumerate(batches):
        check(batch, before, step * BATCH)


@pytest.mark.parametrize("shuffle", ["none", "window", "full"])
def test_bad_rows_that_are_null_are_mixed_as_zeros(folder: str, shuffle: str) -> None:
    dataset = images(folder, good=False, on_error="null")
    mixed = dataset.mix_images("image", "label", choices())
    assert mixed.columns == ["image", "image_valid", "label", "id"]
    same(dataset, mixed, shuffle=shuffle)
    for batch in load(mixed, shuffle=shuffle):
        # The flag is that of the row's own picture, whatever was mixed into it.
        assert batch["image_valid"].tolist() == [r not in BAD for r in batch["id"].tolist()]


@pytest.mark.parametrize("shuffle", ["window", "full"])
@pytest.mark.parametrize("lists", [False, True])
def test_substitutes_are_mixed_like_others(folder: str, shuffle: str, lists: bool) -> None:
    """Also where a batch with lists is made anew for them."""
    columns = ("tags",) if lists else ()
    dataset = images(folder, *columns, good=False, on_error="skip")
    mixed = dataset.mix_images("image", "label", choices())
    options = {"shuffle": shuffle, "lists": "ragged", "format": "numpy"}
    batches = zip(load(mixed, **options), load(dataset, **options), strict=True)
    for step, (batch, before) in enumerate(batches):
        assert not BAD & set(batch["id"].tolist())
        names = ("image", "label", "id")
        ours, theirs = ({n: torch.from_numpy(b[n]) for n in names} for b in (batch, before))
        check(ours, theirs, step * BATCH)


def test_a_bad_row_that_raises_is_named(folder: str) -> None:
    mixed = images(folder, good=False).mix_images("image", "label", choices())
    with pytest.raises(fb.ForebayError) as caught:
        list(load(mixed, shuffle="none"))
    assert (caught.value.row, caught.value.column) == (3, "image")


def test_streams_are_mixed_by_the_place_of_the_batch(folder: str) -> None:
    dataset = fb.read_parquet(folder, columns=["image", "label", "id", "tags"])
    dataset = dataset.filter(f"id NOT IN ({', '.join(map(str, BAD))})").explode("tags")
    dataset = dataset.map_image("image", OPS, mode="RGB")
    mixed = dataset.mix_images("image", "label", choices())
    options = {"steps": 5, "shuffle": "window"}
    loader, before = load(mixed, **options), load(dataset, **options)
    for epoch in range(2):
        for step, (batch, plain) in enumerate(zip(loader, before, strict=True)):
            check(batch, plain, step * BATCH, epoch=epoch)
            if (epoch, step) == (1, 1):
                state = loader.state_dict()
    resumed, before = load(mixed, **options), load(dataset, **options)
    resumed.load_state_dict(state)
    before.load_state_dict({**state, "plan": before.state_dict()["plan"]})
    for step, (batch, plain) in enumerate(zip(resumed, before, strict=True), 2):
        check(batch, plain, step * BATCH, epoch=1)
    assert step == 4


@pytest.mark.parametrize("format", ["numpy", "arrow", "dlpack"])
def test_formats(folder: str, format: str) -> None:
    mixed = images(folder).mix_images("image", "label", choices())
    for batch, want in zip(load(mixed, format=format), load(mixed), strict=True):
        if format == "arrow":
            table = batch.to_pyarrow()
            image = table["image"].to_numpy_ndarray()
            label = table["label"].to_numpy_ndarray()
        else:
            image, label = np.asarray(batch["image"]), np.asarray(batch["label"])
        assert np.array_equal(image, want["image"])
        assert np.array_equal(label, want["label"])
    assert pa.schema(mixed.schema).field("label").type.shape == [CLASSES]


def test_later_steps_move_what_is_mixed(folder: str) -> None:
    dataset = images(folder, "real").with_column("more", "real + 1")
    mixed = dataset.mix_images("image", "label", choices())
    moved = mixed.rename({"image": "x", "label": "y"}).select(["y", "more", "x"])
    for batch, want in zip(load(moved), load(mixed), strict=True):
        assert list(batch) == ["y", "more", "x"]
        assert torch.equal(batch["x"], want["image"])
        assert torch.equal(batch["y"], want["label"])
    alone = mixed.drop("label")
    for batch, want in zip(load(alone), load(mixed), strict=True):
        assert "label" not in batch
        assert torch.equal(batch["image"], want["image"])
    later = mixed.with_column("twice", "real * 2").stack(["real", "more"], into="both")
    for batch, want in zip(load(later), load(mixed), strict=True):
        assert torch.equal(batch["image"], want["image"])
    assert mixed.drop(["image", "label"]).columns == ["id", "real", "more"]
    with pytest.raises(fb.InvalidInputError, match="leaves the images") as caught:
        mixed.drop("image")
    assert "leave out both" in caught.value.hint


def test_two_columns_of_images_have_draws_of_their_own(folder: str) -> None:
    dataset = fb.read_parquet(folder, columns=["image", "label", "gaps", "id"])
    dataset = dataset.filter(f"id NOT IN ({', '.join(map(str, BAD))}) AND gaps IS NOT NULL")
    dataset = dataset.with_column("other", "image")
    for column in ("image", "other"):
        dataset = dataset.map_image(column, OPS, mode="RGB")
    mixed = dataset.mix_images("image", "label", choices()).mix_images("other", "gaps", choices())
    for step, (batch, before) in enumerate(zip(load(mixed), load(dataset), strict=True)):
        for number, label in enumerate(("label", "gaps")):
            key = draws.Draws(5, 0, step * BATCH, 2 * OPERATOR + number)
            lam = draws.mixing(key, CHOICES, SIZE).lam
            hot = np.eye(CLASSES)[before[label]]
            want = hot * lam + np.roll(hot, 1, 0) * (1 - lam)
            assert np.allclose(batch[label], want, atol=1e-6)
        assert not torch.equal(batch["image"], batch["other"])


def test_nulls_and_labels_beyond_the_classes(folder: str) -> None:
    mixed = images(folder, "gaps").mix_images("image", "gaps", choices())
    with pytest.raises(fb.SchemaError, match="a null") as caught:
        list(load(mixed, shuffle="none"))
    assert (caught.value.row, caught.value.column) == (9, "gaps")
    assert caught.value.file.endswith("x.parquet")
    filled = load(mixed, shuffle="none", fill={"gaps": 1})
    assert next(iter(filled))["gaps"].shape == (BATCH, CLASSES)
    for bad, classes in (("label", 5), ("label - 1", 10)):
        dataset = images(folder, "real").with_column("label", bad)
        few = dataset.mix_images("image", "label", choices(classes))
        for format in ("torch", "arrow"):
            with pytest.raises(fb.DataError, match=f"none of the {classes} classes") as caught:
                list(load(few, shuffle="none", format=format))
            error = caught.value
            assert error.row == (5 if classes == 5 else 0)
            assert error.row_group == 0
            assert error.column == "label"
            assert error.file.endswith("x.parquet")
            assert f"label < {classes}" in error.hint


def test_labels_of_other_kinds(folder: str) -> None:
    refused = {
        "name": "texts",
        "tags": "lists",
        "flag": "booleans",
        "image": "the labels are in the column of the images",
    }
    for column, said in refused.items():
        columns = () if column == "image" else (column,)
        with pytest.raises(fb.InvalidInputError, match=said) as caught:
            images(folder, *columns).mix_images("image", column, choices())
        assert "mix_images.label" in str(caught.value)
    # What a type is that no plan knows shows in the loader.
    for column, said in (("real", "DOUBLE|Float64"), ("counts", "these are int64|Int64")):
        dataset = images(folder, column).mix_images("image", column, choices(2))
        with pytest.raises(fb.SchemaError, match=said) as caught:
            load(dataset)
        assert caught.value.column == column
        assert caught.value.hint


def test_images_that_cannot_be_mixed(folder: str) -> None:
    dataset = fb.read_parquet(folder, columns=["image", "label", "id"])
    with pytest.raises(fb.InvalidInputError, match="put the map_image"):
        dataset.mix_images("image", "label", choices())
    with pytest.raises(fb.InvalidInputError, match="name the column of a map_image"):
        images(folder).mix_images("id", "label", choices())
    with pytest.raises(fb.InvalidInputError, match="one mix_images"):
        images(folder).mix_images("image", "label", choices()).mix_images("image", "id", choices())
    uneven = dataset.map_image("image", [fb.Resize(20)], mode="RGB")
    uneven = uneven.mix_images("image", "label", choices())
    with pytest.raises(fb.SchemaError, match="different sizes") as caught:
        load(uneven)
    assert "steps[1].mix_images.column" in str(caught.value)
    assert "RandomResizedCrop" in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("imag", "label", fb.MixUp(num_classes=9)), {}, 'did you mean "image"'),
        (("image", "labels", fb.MixUp(num_classes=9)), {}, 'did you mean "label"'),
        (("image", "label", []), {}, "list of operators is empty"),
        (("image", "label", fb.MixUp()), {}, "num_classes is missing"),
        (("image", "label", [fb.MixUp(num_classes=9), fb.CutMix()]), {}, "the same num_classes"),
        (("image", "label", fb.MixUp(alpha=0, num_classes=9)), {}, "a number above 0, found 0"),
        (("image", "label", fb.CutMix(alpha=-1, num_classes=9)), {}, "cut_mix.alpha"),
        (("image", "label", fb.MixUp(alpha=float("inf"), num_classes=9)), {}, "finite"),
        (("image", "label", fb.MixUp(num_classes=0)), {}, "from 1 to 16777216, found 0"),
        (("image", "label", fb.MixUp(num_classes=9)), {"p": [1, 1]}, "one number for each"),
        (("image", "label", fb.MixUp(num_classes=9)), {"p": [-1]}, "not negative"),
        (("image", "label", fb.MixUp(num_classes=9)), {"p": [0.0]}, "sums to 0"),
    ],
)
def test_bad_input(folder: str, arguments: tuple, options: dict, said: str) -> None:
    with pytest.raises(fb.InvalidInputError) as caught:
        images(folder).mix_images(*arguments, **options)
    assert said in str(caught.value)
    assert "mix_images" in str(caught.value)


def test_arguments_of_the_wrong_type(folder: str) -> None:
    dataset = images(folder)
    for arguments, said in (
        ((5, "label", fb.MixUp()), "column=5"),
        (("image", None, fb.MixUp()), "label=None"),
        (("image", "label", "mix_up"), "ops='mix_up'"),
        (("image", "label", [fb.Resize(3)]), r"ops\[0\]"),
    ):
        with pytest.raises(TypeError, match=said):
            dataset.mix_images(*arguments)
    with pytest.raises(TypeError, match=r"p\[1\]='x'"):
        dataset.mix_images("image", "label", choices(), p=[1, "x"])
    with pytest.raises(TypeError, match="p=3"):
        dataset.mix_images("image", "label", choices(), p=3)
    with pytest.raises(TypeError, match=r"MixUp\(alpha='a'\)"):
        fb.MixUp(alpha="a")
    with pytest.raises(TypeError, match=r"CutMix\(num_classes=1.5\)"):
        fb.CutMix(num_classes=1.5)
    with pytest.raises(TypeError):
        fb.MixUp(0.2)  # by keyword only, as torchvision's
    assert repr(fb.CutMix(num_classes=9)) == "CutMix(alpha=1.0, num_classes=9)"


def test_steps_that_choose_rows_come_before(folder: str) -> None:
    mixed = images(folder, "tags").mix_images("image", "label", choices())
    for late in (
        lambda: mixed.filter("id > 3"),
        lambda: mixed.limit(9),
        lambda: mixed.explode("tags"),
    ):
        with pytest.raises(fb.InvalidInputError, match="before mix_images"):
            late()
    with pytest.raises(fb.InvalidInputError, match='"label" is a tensor since'):
        mixed.with_column("next", "label + 1")


def test_jobs_refuse_to_mix(folder: str, tmp_path: Path) -> None:
    mixed = images(folder).mix_images("image", "label", choices())
    with pytest.raises(fb.InvalidInputError, match="a job writes rows") as caught:
        mixed.write_parquet(tmp_path / "out")
    assert "loader" in caught.value.hint
    assert mixed.count() == ROWS - len(BAD)
    job = tmp_path / "job.yaml"
    steps = f"""
source: {{ parquet: {{ uri: {folder}, columns: [image, label] }} }}
steps:
  - map_image: {{ column: image, ops: [ {{ random_resized_crop: 32 }} ], mode: RGB }}
  - mix_images:
      column: image
      label: label
      ops: [ {{ mix_up: {{ alpha: 0.2, num_classes: 10 }} }}, {{ cut_mix: {{ num_classes: 10 }} }} ]
"""
    job.write_text(steps + f"sink: {{ parquet: {tmp_path / 'out'} }}\n")
    for command in ("run", "explain"):
        status, _, err = forebay(command, job)
        assert status != 0
        assert f"{job}:5:5: steps[1].mix_images" in err
        assert "mix in the loader" in err
    assert not (tmp_path / "out").exists()
    job.write_text(steps)
    status, out, err = forebay("explain", job)
    assert status == 0, err
    assert "mix_up (alpha 0.2) or cut_mix (alpha 1)" in out
    assert "world size" in out
    assert "world size" in mixed.explain()
    status, out, _ = forebay("explain", job, "--json")
    does = {step["place"]: step["does"] for step in json.loads(out)["steps"]}
    assert "world size" in does["steps[1].mix_images"]


def test_a_plan_travels(folder: str) -> None:
    mixed = images(folder).mix_images("image", "label", choices(), p=[1, 3])
    again = pickle.loads(pickle.dumps(mixed))
    assert again.plan() == mixed.plan()
    assert mixed.plan()["steps"][-1] == {
        "mix_images": {
            "column": "image",
            "label": "label",
            "ops": [
                {"mix_up": {"alpha": 0.4, "num_classes": CLASSES}},
                {"cut_mix": {"alpha": 1.0, "num_classes": CLASSES}},
            ],
            "p": [1.0, 3.0],
        }
    }
    for batch, want in zip(load(again), load(mixed), strict=True):
        assert torch.equal(batch["image"], want["image"])


def test_an_epoch_left_early_leaves_nothing_behind(folder: str) -> None:
    loader = load(images(folder).mix_images("image", "label", choices()), prefetch=4)
    for steps in range(4):
        for step, _ in enumerate(loader):
            if step == steps:
                break
