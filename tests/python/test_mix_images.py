"""MixUp and CutMix: torchvision's arithmetic with the draws that are promised, for any order."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draws
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from support import digest, write

import forebay as fb

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")

ROWS = 60
BATCH = 8
CLASSES = 10
SIZE = (24, 36)  # height and width
# Two operators before it: it is number 2.
OPS = [fb.RandomHorizontalFlip(), fb.RandomCrop(SIZE)]
OPERATOR = len(OPS)
CHOICES = [("MixUp", 0.4), ("CutMix", 1.0)]

MIXES = [
    {"shuffle": "none"},
    {"shuffle": "full"},
    {"shuffle": "window", "lanes": 1, "window": 1},
    {"shuffle": "window", "lanes": 4, "window": 2},
]


def png(row: int, side: int = 40) -> bytes:
    pixels = np.random.default_rng(row).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def labels(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(99).integers(0, CLASSES, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two files of 30 rows in row groups of 7."""
    folder = tmp_path_factory.mktemp("mixed")
    shares = np.random.default_rng(5).random((ROWS, 4))
    for part in range(2):
        rows = range(part * 30, part * 30 + 30)
        columns = {
            "image": [png(row) for row in rows],
            "label": labels()[rows.start : rows.stop],
            "id": list(rows),
            "shares": pa.array(list(shares[rows.start : rows.stop]), pa.list_(pa.float32(), 4)),
            "wide": pa.array(list(shares[rows.start : rows.stop]), pa.list_(pa.float64(), 4)),
            "half": pa.array(
                list(shares[rows.start : rows.stop].astype(np.float16)), pa.list_(pa.float16(), 4)
            ),
            "a": shares[rows.start : rows.stop, 0],
            "b": shares[rows.start : rows.stop, 1],
        }
        write(folder / f"part-{part}.parquet", columns, row_group_size=7)
    return str(folder)


def plain(folder: str, columns: tuple[str, ...] = ("image", "label", "id"), **how: Any) -> Any:
    dataset = fb.read_parquet(folder, columns=list(columns))
    return dataset.map_image("image", OPS, **{"mode": "RGB", **how})


def choices(classes: int | None = CLASSES, choices: Any = CHOICES) -> list[fb.MixOp]:
    return [getattr(fb, name)(alpha=alpha, num_classes=classes) for name, alpha in choices]


def load(dataset: fb.Dataset, **options: Any) -> fb.Loader:
    options = {"global_batch_size": BATCH, "seed": 5, "format": "torch", **options}
    return dataset.loader(**{"rank": 0, "world_size": 1, **options})


def torchvisions(images: Any, labels: Any, drawn: draws.Mixed, name: str, classes: int) -> Any:
    """What torchvision makes of a batch, with this drawn."""
    op = getattr(v2, name)(num_classes=classes)
    made = {"lam": drawn.lam} if drawn.box is None else {"box": drawn.box}
    op.make_params = lambda _: {**made, "lam_adjusted": drawn.lam}
    return op(images, labels)


def check(
    mixed: dict[str, Any],
    before: dict[str, Any],
    place: int,
    *,
    epoch: int = 0,
    ops: Any = CHOICES,
    p: Any = None,
    label: str = "label",
    layout: str = "CHW",
    classes: int = CLASSES,
) -> draws.Mixed:
    """Compare a batch bit for bit with torchvision's; `place` is that of its first sample."""
    assert list(mixed) == list(before)
    for name in set(before) - {"image", label}:
        assert torch.equal(mixed[name], before[name])
    images = before["image"] if layout == "CHW" else before["image"].permute(0, 3, 1, 2)
    assert mixed["image"].shape == before["image"].shape
    assert mixed["image"].dtype == before["image"].dtype
    drawn = draws.mixing(draws.Draws(5, epoch, place, OPERATOR), ops, images.shape[-2:], p)
    images, shares = torchvisions(images, before[label], drawn, ops[drawn.op][0], classes)
    images = images if layout == "CHW" else images.permute(0, 2, 3, 1)
    assert torch.equal(mixed["image"], images)
    assert mixed[label].dtype == shares.dtype
    # The logarithms of two libraries may differ in the last of 53 bits.
    last = 1e-15 if shares.dtype == torch.float64 else 0
    assert (mixed[label] - shares).abs().sum() <= last * shares.numel()
    return drawn


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("op", CHOICES)
def test_pixels_and_labels_are_torchvisions(
    folder: str, dtype: str, layout: str, op: tuple[str, float]
) -> None:
    dataset = plain(folder, dtype=dtype, layout=layout)
    mixed = dataset.mix_images("image", "label", choices(choices=[op]))
    batches = zip(load(mixed), load(dataset), strict=True)
    for step, (batch, before) in enumerate(batches):
        check(batch, before, step * BATCH, ops=[op], layout=layout)
    assert step == ROWS // BATCH - 1


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_bytes_are_cut_as_torchvision_does_and_blended_to_the_nearest(
    folder: str, layout: str, mode: str
) -> None:
    dataset = plain(folder, dtype="uint8", layout=layout, mode=mode)
    cut = [("CutMix", 1.0)]
    mixed = dataset.mix_images("image", "label", choices(choices=cut))
    for step, (batch, before) in enumerate(zip(load(mixed), load(dataset), strict=True)):
        check(batch, before, step * BATCH, ops=cut, layout=layout)
    # torchvision's MixUp has no bytes: the mean is compared with that of real numbers.
    up = [("MixUp", 1.0)]
    mixed = dataset.mix_images("image", "label", choices(choices=up))
    for step, (batch, before) in enumerate(zip(load(mixed), load(dataset), strict=True)):
        lam = draws.mixing(draws.Draws(5, 0, step * BATCH, OPERATOR), up, SIZE).lam
        own = before["image"].double()
        exact = own.roll(1, 0) * (1 - lam) + own * lam
        assert batch["image"].dtype == torch.uint8
        assert (batch["image"].double() - exact).abs().max() <= 0.502


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_rank_mixes_its_own_batch(folder: str, mix: dict, world: int, epoch: int) -> None:
    dataset = plain(folder)
    mixed = dataset.mix_images("image", "label", choices())
    seen = set()
    for rank in range(world):
        options = {"rank": rank, "world_size": world, "epoch_end": "partial", **mix}
        loaders = load(mixed, **options), load(dataset, **options)
        for loader in loaders:
            loader.set_epoch(epoch)
        for step, (batch, before) in enumerate(zip(*loaders, strict=True)):
            samples = min(BATCH, ROWS - step * BATCH)
            place = step * BATCH + rank * samples // world
            drawn = check(batch, before, place, epoch=epoch)
            seen.add((drawn.op, drawn.lam, drawn.box))
    assert len(seen) == world * -(-ROWS // BATCH), "every batch has draws of its own"
    assert {op for op, *_ in seen} == {0, 1}


@pytest.mark.parametrize("mix", MIXES)
def test_threads_change_nothing(folder: str, mix: dict) -> None:
    mixed = plain(folder).mix_images("image", "label", choices())
    hashes = {
        digest(iter(load(mixed, format="numpy", num_threads=n, prefetch=ahead, **mix)))
        for n, ahead in ((1, 1), (2, 4), (4, 2), (7, 8))
    }
    assert len(hashes) == 1
    other = load(mixed, format="numpy", **{**mix, "seed": 6})
    assert digest(iter(other)) not in hashes


def test_pictures_that_threads_share_are_mixed_whole(tmp_path: Path) -> None:
    """Large enough to be cut into a strip for each thread."""
    columns = {"image": [png(row, 200) for row in range(6)], "label": labels(6)}
    path = write(tmp_path / "x.parquet", columns)
    for layout in ("CHW", "HWC"):
        dataset = fb.read_parquet(path).map_image(
            "image", [fb.CenterCrop((190, 173)), fb.CenterCrop((190, 173))], layout=layout
        )
        for op in CHOICES:
            mixed = dataset.mix_images("image", "label", choices(choices=[op]))
            for threads in (1, 3, 8):
                options = {"shuffle": "none", "num_threads": threads, "global_batch_size": 6}
                batches = zip(load(mixed, **options), load(dataset, **options), strict=True)
                for batch, before in batches:
                    check(batch, before, 0, ops=[op], layout=layout)


@pytest.mark.parametrize("mix", MIXES)
def test_an_epoch_resumes_at_every_batch(folder: str, mix: dict) -> None:
    mixed = plain(folder).mix_images("image", "label", choices())
    loader = load(mixed, **mix)
    batches, states = [], []
    for batch in loader:
        batches.append({name: value.clone() for name, value in batch.items()})
        states.append(loader.state_dict())
    for done, state in enumerate(states, 1):
        other = load(mixed, num_threads=1, **mix)
        other.load_state_dict(state)
        for batch, want in zip(other, batches[done:] or batches[:0], strict=False):
            assert all(torch.equal(batch[name], want[name]) for name in want)
    another = plain(folder).mix_images("image", "label", choices(choices=[("MixUp", 0.3)]))
    with pytest.raises(fb.ForebayError, match="plan"):
        load(another, **mix).load_state_dict(states[0])


def test_a_state_goes_on_in_another_world(folder: str) -> None:
    """The draws are those of the places, whoever delivers them."""
    dataset = plain(folder)
    mixed = dataset.mix_images("image", "label", choices())
    loader = load(mixed, **MIXES[3])
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    del iterator
    other = load(dataset, **MIXES[3])
    iterator = iter(other)
    next(iterator), next(iterator)
    state_of_plain = other.state_dict()
    del iterator
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, **MIXES[3]}
        ranks = load(mixed, **options), load(dataset, **options)
        for rank_loader, at in zip(ranks, (state, state_of_plain), strict=True):
            rank_loader.load_state_dict(at)
        for step, (batch, before) in enumerate(zip(*ranks, strict=True), 2):
            check(batch, before, step * BATCH + rank * BATCH // 2)


def test_workers_of_torch_deliver_the_same(folder: str) -> None:
    dataset = plain(folder)
    loader = load(dataset.mix_images("image", "label", choices()), **MIXES[3])
    for workers in (0, 2):
        loader.set_epoch(0)
        steps = torch.utils.data.DataLoader(loader.as_torch(), batch_size=None, num_workers=workers)
        pairs = zip(steps, load(dataset, **MIXES[3]), strict=True)
        for step, (batch, before) in enumerate(pairs):
            check(batch, before, step * BATCH)


def test_last_batches(folder: str) -> None:
    """A row alone meets itself, no rows stay none, and repeats are mixed like others."""
    dataset = plain(folder).filter("id < 17")
    mixed = dataset.mix_images("image", "label", choices())
    partial = {"epoch_end": "partial", "shuffle": "window"}
    *_, last = load(mixed, **partial)
    *_, before = load(dataset, **partial)
    assert last["image"].shape == (1, 3, *SIZE)
    check(last, before, 16)
    assert (last["image"] - before["image"]).abs().max() < 1e-6
    assert abs(last["label"].sum().item() - 1) < 1e-6
    ranks = [load(mixed, rank=r, world_size=2, **partial) for r in range(2)]
    sizes = [[len(batch["label"]) for batch in loader] for loader in ranks]
    assert sizes == [[4, 4, 0], [4, 4, 1]]
    *_, empty = ranks[0]
    assert empty["image"].shape == (0, 3, *SIZE)
    assert empty["label"].shape == (0, CLASSES)
    assert empty["label"].dtype == torch.float32
    padded = {"epoch_end": "pad", "shuffle": "window"}
    batches = zip(load(mixed, **padded), load(dataset, **padded), strict=True)
    for step, (batch, before) in enumerate(batches):
        check(batch, before, step * BATCH)
    assert batch["_repeat"].sum() == 7


@pytest.mark.parametrize("column", ["shares", "wide", "half", "stacked"])
def test_labels_that_are_shares_already(folder: str, column: str) -> None:
    dataset = plain(folder, ("image", "shares", "wide", "half", "a", "b"))
    dataset = dataset.stack(["a", "b"], into="stacked")
    classes = 2 if column == "stacked" else 4
    for said in (None, classes):
        mixed = dataset.mix_images("image", column, choices(said))
        batches = zip(load(mixed), load(dataset), strict=True)
        for step, (batch, before) in enumerate(batches):
            check(batch, before, step * BATCH, label=column, classes=classes)
    with pytest.raises(fb.InvalidInputError, match="num_classes is 9") as caught:
        load(dataset.mix_images("image", column, choices(9)))
    assert f"give {classes}" in caught.value.hint


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_classes_of_every_integer(tmp_path: Path, kind: str) -> None:
    classes = labels(8).astype(kind)
    path = write(tmp_path / "x.parquet", {"image": [png(r) for r in range(8)], "label": classes})
    mixed = fb.read_parquet(path).map_image("image", OPS)
    mixed = mixed.mix_images("image", "label", fb.MixUp(num_classes=CLASSES))
    (batch,) = load(mixed, shuffle="none")
    lam = draws.mixing(draws.Draws(5, 0, 0, OPERATOR), [("MixUp", 1.0)], SIZE).lam
    hot = np.eye(CLASSES)[classes]
    assert np.allclose(batch["label"], hot * lam + np.roll(hot, 1, 0) * (1 - lam), atol=1e-6)


def test_choices_follow_their_weights(folder: str) -> None:
    dataset = plain(folder)
    p = [0.25, 3]
    mixed = dataset.mix_images("image", "label", choices(), p=p)
    drawn = []
    for epoch in range(12):
        loaders = load(mixed), load(dataset)
        for loader in loaders:
            loader.set_epoch(epoch)
        for step, (batch, before) in enumerate(zip(*loaders, strict=True)):
            drawn.append(check(batch, before, step * BATCH, epoch=epoch, p=p).op)
    assert 0 < drawn.count(0) < len(drawn) / 4


def tiny(folder: Path, rows: int) -> str:
    """A black picture, a white one, and so on."""
    pictures = []
    for value in (0, 255):
        out = io.BytesIO()
        Image.fromarray(np.full((16, 16), value, np.uint8)).save(out, "PNG")
        pictures.append(out.getvalue())
    columns = {"image": pictures * (rows // 2), "label": [0, 1] * (rows // 2)}
    return write(folder / "x.parquet", columns)


def pairs(path: str, op: fb.MixOp) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    mixed = fb.read_parquet(path).map_image("image", [fb.CenterCrop(16)])
    loader = load(mixed.mix_images("image", "label", op), shuffle="none", global_batch_size=2)
    for batch in loader:
        yield batch["image"][:, 0].numpy().copy(), batch["label"].numpy().copy()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_lambda_has_its_distribution(tmp_path: Path, alpha: float) -> None:
    """Seen in the pixels: no word of the generator is believed here."""
    lams = []
    for image, label in pairs(tiny(tmp_path, 8000), fb.MixUp(alpha=alpha, num_classes=2)):
        assert np.ptp(image, axis=(1, 2)).max() == 0
        # The black picture is blended with the white one, and the other way round.
        lam = image[1, 0, 0]
        assert abs(image[0, 0, 0] - (1 - lam)) < 1e-6
        assert np.allclose(label, [[lam, 1 - lam], [1 - lam, lam]], atol=1e-6)
        lams.append(lam)
    lams = np.array(lams, np.float64)
    variance = 1 / (4 * (2 * alpha + 1))
    error = np.sqrt(variance / len(lams))
    assert abs(lams.mean() - 0.5) < 4 * error
    assert abs(lams.var() / variance - 1) < 0.1
    # Kolmogorov and Smirnov's test of two samples, at one in a thousand.
    torch.manual_seed(0)
    theirs = torch.distributions.Beta(alpha, alpha).sample((40_000,)).double().numpy()
    every = np.sort(np.concatenate([lams, theirs]))
    below = (np.searchsorted(np.sort(x), every, side="right") / x.size for x in (lams, theirs))
    assert np.abs(np.subtract(*below)).max() < 1.95 * np.sqrt(1 / lams.size + 1 / theirs.size)


def test_boxes_have_their_distribution(tmp_path: Path) -> None:
    boxes = []
    for image, label in pairs(tiny(tmp_path, 8000), fb.CutMix(num_classes=2)):
        inside = image[0] == 1
        assert np.array_equal(image[1] == 0, inside)
        assert set(np.unique(image)) <= {0, 1}
        rows, columns = inside.any(axis=1), inside.any(axis=0)
        assert inside.sum() == rows.sum() * columns.sum(), "a rectangle"
        for seen in (rows, columns):
            assert np.abs(np.diff(seen.astype(int))).sum() <= 2, "in one piece"
        share = inside.mean()
        assert np.allclose(label, [[1 - share, share], [share, 1 - share]], atol=1e-6)
        boxes.append([share, *(np.flatnonzero(rows).mean() if rows.any() else 8,)])
    area, middle = np.array(boxes).T
    theirs = []
    op = v2.CutMix(num_classes=2)
    torch.manual_seed(0)
    for _ in range(4000):
        x1, y1, x2, y2 = op.make_params([torch.zeros(2, 1, 16, 16)])["box"]
        theirs.append(
            [(x2 - x1) * (y2 - y1) / 256, (y1 + y2 - 1) / 2 if y2 > y1 and x2 > x1 else 8]
        )
    for ours, other in zip((area, middle), np.array(theirs).T, strict=True):
        assert abs(ours.mean() - other.mean()) < 4 * np.sqrt(2 * other.var() / len(other))
        assert abs(ours.std() - other.std()) < 0.05 * other.std()
