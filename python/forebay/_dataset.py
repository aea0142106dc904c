"""Datasets: files, and what is done to their rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from forebay import _arguments, _forebay
from forebay._images import ImageOp
from forebay._loader import Loader
from forebay._mix_images import MixOp
from forebay._options import Uri, listed, loader_options

_SQL = "a SQL expression as a text"


def _uris(uri: Uri | Sequence[Uri]) -> list[str]:
    many = [uri] if isinstance(uri, (str, os.PathLike)) else _arguments.items(uri)
    if many is None or not all(isinstance(u, (str, os.PathLike)) for u in many):
        want = "a path, glob, folder or URI, or a list of them"
        raise _arguments.wrong("read_parquet", "uri", uri, want)
    return [_arguments.path("read_parquet", u) for u in many]


def _open_parquet(call: str, columns: Sequence[str] | None, **source: Any) -> Dataset:
    """Open a Parquet source; `call` is the function whose arguments they are, for errors."""
    if columns is not None:
        source["columns"] = _arguments.names(call, "columns", columns)
    return _open(_arguments.as_json(call, {"source": {"parquet": _arguments.given(**source)}}))


def _open(plan: str) -> Dataset:
    return Dataset(_forebay.Dataset.open(plan))


def read_parquet(
    uri: Uri | Sequence[Uri],
    columns: Sequence[str] | None = None,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
    anonymous: bool | None = None,
) -> Dataset:
    """Open Parquet files as a dataset.

    The files are listed and their footers read at once; no row is read before it is needed.

    Parameters
    ----------
    uri : str, path, or sequence of them
        Files, folders (searched recursively; hive partitions ``key=value`` become columns), globs
        (``*``, ``?``, ``[..]``, ``**``), or ``s3://bucket/prefix``. Files come in the order given,
        those of a folder or glob bytewise by path. A path given twice is read twice. Names that
        start with ``_`` or ``.`` are never data.
    columns : sequence of str, optional
        Columns to read. Default: all; what no step and no output needs is not read anyway.
    endpoint : str, optional
        S3 endpoint URL. Default: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, else AWS.
    region : str, optional
        Default: ``AWS_REGION``, ``AWS_DEFAULT_REGION``, else ``us-east-1``.
    path_style : bool, optional
        Address buckets by path. Default: with an endpoint.
    anonymous : bool, optional
        Do not sign requests. Default: no. Credentials come from the usual AWS variables or the
        machine's role, never from arguments.

    Returns
    -------
    Dataset

    Raises
    ------
    NotFoundError
        A path, bucket or glob that matches nothing.
    CorruptDataError
        A file that is not Parquet, or is cut off.
    SchemaError
        Files whose columns have types that do not fit each other.
    PermissionDeniedError, StorageError
        A store that does not let us in, or fails.

    Examples
    --------
    >>> import forebay as fb
    >>> ds = fb.read_parquet("examples/data/flights")
    >>> ds.count() > 0
    True
    """
    return _open_parquet(
        "read_parquet",
        columns,
        uri=_uris(uri),
        endpoint=endpoint,
        region=region,
        path_style=path_style,
        anonymous=anonymous,
    )


def read_snapshot(
    uri: Uri,
    columns: Sequence[str] | None = None,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
    anonymous: bool | None = None,
) -> Dataset:
    """Open a dataset that was saved with `Snapshot.save` or ``forebay snapshot``.

    Nothing is listed and no footer is read, so a thousand ranks may open it at once. Each file's
    pin (size, and ETag or modification time and inode) is checked whenever the file is read.

    Parameters
    ----------
    uri : str or path
        The snapshot: a path or an ``s3://`` URI.
    columns : sequence of str, optional
        Columns to read. Default: all.
    endpoint, region, path_style, anonymous : optional
        How to reach the store, as in `read_parquet`; for the snapshot and for its files.

    Returns
    -------
    Dataset

    Raises
    ------
    NotFoundError
        There is no such file.
    CorruptDataError
        It is not a snapshot, or is damaged.
    UnsupportedError
        It is a snapshot of a later version of Forebay.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> ds = fb.read_parquet("examples/data/flights")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ds.snapshot().save(f"{folder}/flights.json")
    ...     again = fb.read_snapshot(f"{folder}/flights.json")
    >>> again.count() == ds.count()
    True
    """
    return _open_parquet(
        "read_snapshot",
        columns,
        snapshot=_arguments.absolute(_arguments.path("read_snapshot", uri)),
        endpoint=endpoint,
        region=region,
        path_style=path_style,
        anonymous=anonymous,
    )


class Snapshot:
    """A resolved dataset: its files, what they looked like, and their footers.

    Made by `Dataset.snapshot`. It fixes the data that a training run sees: whoever opens the saved
    snapshot has the same files, blocks and order, and a file that has changed since is an error.
    """

    def __init__(self, native: _forebay.Snapshot) -> None:
        self._native = native

    @property
    def id(self) -> str:
        """32 hexadecimal digits over paths, sizes, footers, blocks and schema.

        A copy of the data elsewhere has the same id; other data has another. Loader states hold it.
        """
        return self._native.id

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self._native.rows

    @property
    def files(self) -> int:
        """Number of files."""
        return self._native.files

    @property
    def blocks(self) -> int:
        """Number of blocks: row groups, or the parts of them that are read at once."""
        return self._native.blocks

    def refresh(self) -> Snapshot:
        """List the source again, and read the footers of new and changed files only.

        Returns
        -------
        Snapshot
            A new one; its `id` is the same if nothing has changed.
        """
        return Snapshot(self._native.refresh())

    def save(self, uri: Uri) -> None:
        """Save to a path or an ``s3://`` URI, whole or not at all.

        Parameters
        ----------
        uri : str or path
            What is there is replaced. Names that start with ``_`` or ``.`` or do not end in
            ``.parquet`` are not data, so it may lie beside the files.
        """
        self._native.save(_arguments.path("save", uri))

    def __repr__(self) -> str:
        return f"forebay.Snapshot({self.rows} rows in {self.files} files, id {self.id})"


class Dataset:
    """Files and the steps on their rows.

    Made by `read_parquet`. Every method returns a new dataset and checks names, types and
    expressions at once, against the real schema. Nothing is read until `count`, `loader`,
    `write_parquet` or a loop over a loader needs it.
    """

    def __init__(self, native: _forebay.Dataset) -> None:
        self._native = native

    def _step(self, word: str, value: Any) -> Dataset:
        return Dataset(self._native.with_step(_arguments.as_json(word, {word: value})))

    def filter(self, expr: str) -> Dataset:
        """Keep the rows for which a SQL expression is true (not false, not null).

        Row groups that cannot hold such a row, by their statistics, are not read.

        Parameters
        ----------
        expr : str
            A SQL expression over the columns, e.g. ``"label < 100 AND name LIKE 'a%'"``. Column
            names are case-sensitive; write unusual ones in double quotes.

        Raises
        ------
        InvalidInputError
            An unknown column or function (with the nearest name), a syntax error, an expression
            that is not boolean, or one that is random.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/flights")
        >>> ds.filter("dep_delay > 60").count() < ds.count()
        True
        """
        return self._step("filter", _arguments.text("filter", "expr", expr, _SQL))

    def select(self, columns: str | Sequence[str]) -> Dataset:
        """Keep these columns, in this order."""
        return self._step("select", _arguments.names("select", "columns", columns))

    def drop(self, columns: str | Sequence[str]) -> Dataset:
        """Leave these columns out."""
        return self._step("drop", _arguments.names("drop", "columns", columns))

    def rename(self, columns: Mapping[str, str]) -> Dataset:
        """Rename columns, all at once.

        Parameters
        ----------
        columns : mapping
            From old names to new ones.
        """
        if not isinstance(columns, Mapping):
            want = "a mapping of old names to new ones"
            raise _arguments.wrong("rename", "columns", columns, want)
        return self._step("rename", dict(columns))

    def with_column(self, name: str, expr: str) -> Dataset:
        """Add a column, or replace one in its place.

        Parameters
        ----------
        name : str
            The column's name.
        expr : str
            A SQL expression over the columns so far, e.g. ``"1.0 / (label + 1)"``.
        """
        _arguments.text("with_column", "name", name, "a column name")
        _arguments.text("with_column", "expr", expr, _SQL)
        return self._step("with_column", {"name": name, "expr": expr})

    def explode(self, column: str) -> Dataset:
        """Give a row for each element of a column of lists, the other columns repeated.

        A row whose list is null or empty gives none, as SQL's ``UNNEST`` (pandas and Polars give
        it one with a null). An element that is null stays a null.

        A loader over it delivers endless streams, and needs ``steps=``: how many samples an epoch
        has shows only when it is made. Filters on other columns cost least before this step.

        Parameters
        ----------
        column : str
            A column of lists, large lists or fixed-size lists; its elements take its place.

        Raises
        ------
        InvalidInputError
            An unknown column (with the nearest name), or a tensor.
        SchemaError
            A column that does not hold lists.

        Examples
        --------
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> import forebay as fb
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pa.table({"id": [1, 2, 3], "tokens": [[5, 6], [], [7]]})
        ...     pq.write_table(table, f"{folder}/docs.parquet")
        ...     ds = fb.read_parquet(folder).explode("tokens")
        ...     loader = ds.loader(batch_size=2, shuffle="none", steps=2, format="numpy")
        ...     ds.count(), [batch["tokens"].tolist() for batch in loader]
        (3, [[5, 6], [7, 5]])
        """
        return self._step("explode", _arguments.text("explode", "column", column, "a column name"))

    def limit(self, rows: int) -> Dataset:
        """Keep the first rows; reading stops as soon as there are enough."""
        return self._step("limit", rows)

    def map_image(
        self,
        column: str,
        ops: Sequence[ImageOp] = (),
        *,
        mode: str | None = None,
        dtype: str | None = None,
        layout: str = "CHW",
        quality: str = "fast",
        on_error: str = "raise",
    ) -> Dataset:
        """Decode the images of a column and transform them into tensors, or into files again.

        Parameters
        ----------
        column : str
            A binary column of JPEG or PNG files; its tensor takes its place, or with
            `encode_image` its new files.
        ops : sequence of ImageOp
            Operators in order, e.g. ``[fb.RandomResizedCrop(224), fb.RandomHorizontalFlip()]``.
            Random ones draw by (seed, epoch, row, operator): the same for any number of threads.
        mode : {"RGB", "L", "RGBA"}, optional
            Convert to this mode, as Pillow's ``convert``. Default: the file's own; images of
            different modes in one column are then an error, but with `encode_image`.
        dtype : {"uint8", "float16", "bfloat16", "float32"}, optional
            Pixels are 0 to 255 as uint8, and 0 to 1 as floats (before `Normalize`). Default: that
            of `ToDtype` among the operators, else float32. `encode_image` writes pixels: uint8.
        layout : {"CHW", "HWC"}, default "CHW"
            Order of the axes of one image.
        quality : {"fast", "exact"}, default "fast"
            ``exact`` decodes and resizes as torchvision does.
        on_error : {"raise", "skip", "null"}, default "raise"
            What to do with a bad row: an image that is null, cannot be decoded, is beyond the
            limits, or is of no use to an operator (too small for `RandomCrop`). ``raise`` stops the
            run with an error that names file, row group, row and column. ``skip`` in a loader
            delivers the next good row of the lane in its place, with all of its columns, so that
            counts, order and state stay as they are; `write_parquet` leaves the row out. ``null``
            gives zeros, and False in a boolean column ``<column>_valid`` behind the images; where
            each has a size of its own, a tensor without pixels; with `encode_image`, a null.
            Tensors need a `mode` for ``skip`` and ``null``. See the arguments ``max_bad_rows``,
            ``max_bad_share`` and ``bad_rows_to`` of `loader` and `write_parquet`.

        Returns
        -------
        Dataset
            With a tensor of shape ``[batch, channels, height, width]`` in the column's place, or a
            list of tensors where no operator fixes the size. With `encode_image`, for jobs, the
            column stays binary.

        Raises
        ------
        InvalidInputError
            An unknown column or word, operators that do not fit each other, a policy that needs a
            `mode`, or a column ``<column>_valid`` of your own beside ``on_error="null"``.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/photos").map_image(
        ...     "image", [fb.Resize([32, 32])], mode="RGB", dtype="uint8")
        >>> next(iter(ds.loader(batch_size=4, format="numpy")))["image"].shape
        (4, 3, 32, 32)
        """
        _arguments.text("map_image", "column", column, "a column name")
        every = None if isinstance(ops, ImageOp) else _arguments.items(ops)
        if every is None:
            raise _arguments.wrong("map_image", "ops", ops, "a list of operators: [fb.Resize(224)]")
        for n, op in enumerate(every):
            if not isinstance(op, ImageOp):
                want = "an image operator, such as fb.Resize(224)"
                raise _arguments.wrong("map_image", f"ops[{n}]", op, want)
        words = {
            "mode": mode,
            "dtype": dtype,
            "layout": layout,
            "quality": quality,
            "on_error": on_error,
        }
        for argument, word in words.items():
            # None keeps the mode of each file; it is no word for "null" or for a default.
            if word is not None or argument == "on_error":
                _arguments.text("map_image", argument, word, 'a word such as "float32" or "RGB"')
        return self._step(
            "map_image",
            _arguments.given(
                column=column,
                ops=[op._as_plan() for op in every],
                **words,
            ),
        )

    def mix_images(
        self,
        column: str,
        label: str,
        ops: MixOp | Sequence[MixOp],
        *,
        p: Sequence[float] | None = None,
    ) -> Dataset:
        """Mix the images of each batch, and their labels by the same shares: MixUp and CutMix.

        For each batch one of the operators is drawn. The partner of a sample is the one before it
        in the batch, that of the first is the last, so the order should be a shuffled one. All of
        it is as in torchvision, but for the draws: they depend on the seed, the epoch and the
        place of the batch in it, and on nothing else. A batch is what one rank gets: with another
        world size other samples meet.

        The step comes behind `map_image`, which must bring all images to one size, and behind
        every `filter`, `limit` and `explode`. Jobs (`write_parquet`, ``forebay run``) refuse it:
        they have no batches.

        Parameters
        ----------
        column : str
            The images, decoded by `map_image`.
        label : str
            Whole numbers from 0 to ``num_classes - 1``, which become float32 shares of shape
            ``[batch, num_classes]``; or such shares already, as fixed-size lists of floats or a
            `stack` of them.
        ops : MixOp or sequence of MixOp
            `MixUp` and `CutMix`.
        p : sequence of float, optional
            How likely each of them is, relative to the others. Default: all alike.

        Returns
        -------
        Dataset
            With the same columns.

        Raises
        ------
        TypeError
            What is not an operator, a text or a number.
        InvalidInputError
            An unknown column (with the nearest name), images that are not decoded yet, labels of
            another kind, operators without `num_classes` or with different ones. A later step that
            chooses rows, or leaves the images out and keeps the labels, is refused as well.
        SchemaError
            From `loader`: images of different sizes, labels that are neither whole numbers nor
            floats. From a batch: a label that is null (`fill` helps), with file, row group and row.
        DataError
            From a batch: a label that is not among the classes, with file, row group and row.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/photos", columns=["image", "label"])
        >>> ds = ds.map_image("image", [fb.RandomResizedCrop(32)], mode="RGB")
        >>> mixes = [fb.MixUp(alpha=0.2, num_classes=10), fb.CutMix(num_classes=10)]
        >>> loader = ds.mix_images("image", "label", mixes).loader(4, format="numpy")
        >>> batch = next(iter(loader))
        >>> batch["image"].shape, batch["label"].shape, batch["label"].sum(axis=1).round(3).tolist()
        ((4, 3, 32, 32), (4, 10), [1.0, 1.0, 1.0, 1.0])
        """
        _arguments.text("mix_images", "column", column, "a column name")
        _arguments.text("mix_images", "label", label, "a column name")
        every = [ops] if isinstance(ops, MixOp) else _arguments.items(ops)
        if every is None:
            want = "an operator or a list of them: [fb.MixUp(num_classes=1000)]"
            raise _arguments.wrong("mix_images", "ops", ops, want)
        for n, op in enumerate(every):
            if not isinstance(op, MixOp):
                want = "fb.MixUp(...) or fb.CutMix(...)"
                raise _arguments.wrong("mix_images", f"ops[{n}]", op, want)
        weights = None if p is None else _arguments.items(p)
        if p is not None and weights is None:
            raise _arguments.wrong("mix_images", "p", p, "a list of one number for each operator")
        if weights is not None:
            weights = [_arguments.number("mix_images", f"p[{n}]", w) for n, w in enumerate(weights)]
        return self._step(
            "mix_images",
            _arguments.given(
                column=column, label=label, ops=[op._as_plan() for op in every], p=weights
            ),
        )

    def stack(self, columns: Sequence[str], into: str, *, dtype: str = "float32") -> Dataset:
        """Put numeric columns side by side into one dense ``[batch, n]`` tensor.

        Parameters
        ----------
        columns : sequence of str
            Columns of numbers or booleans, in order; the new column replaces them.
        into : str
            Its name.
        dtype : str, default "float32"
            Its element type. A float rounds what it cannot hold exactly; an integer refuses it,
            with a `SchemaError` that names the row, when the batch comes.
        """
        _arguments.text("stack", "into", into, "a column name")
        _arguments.text("stack", "dtype", dtype, 'a word such as "float32"')
        columns = _arguments.names("stack", "columns", columns)
        return self._step("stack", {"columns": columns, "into": into, "dtype": dtype})

    @property
    def columns(self) -> list[str]:
        """Names of the output columns, in order."""
        return [name for name, _ in self._native.columns()]

    @property
    def schema(self) -> Any:
        """The Arrow schema of the output, as an object with ``__arrow_c_schema__``.

        ``pyarrow.schema(ds.schema)`` makes it pyarrow's.
        """
        return self._native.schema()

    def snapshot(self, index_pages: bool = False) -> Snapshot:
        """Give the files as they were listed, to save and share; see `read_snapshot`.

        Parameters
        ----------
        index_pages : bool
            For files without a page index (pyarrow writes none unless asked), read the headers of
            all pages once and keep where they are. Large row groups then become blocks of about
            8 MiB, which shuffle and start better; the `id` is another one then. Default: no.

        Raises
        ------
        TypeError
            If `index_pages` is neither True nor False.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/flights")
        >>> ds.snapshot().rows == ds.snapshot(index_pages=True).rows == ds.count()
        True
        """
        taken = self._native.snapshot()
        if _arguments.flag("snapshot", "index_pages", index_pages):
            taken = taken.index_pages()
        return Snapshot(taken)

    def count(self) -> int:
        """Count the rows.

        From the footers alone where no step leaves rows out or multiplies them; otherwise the
        columns that decide are read, as far as statistics do not.
        """
        return self._native.count()

    def explain(self, *, as_json: bool = False) -> str:
        """Say what would be read (columns, row groups, bytes), done, and delivered."""
        return self._native.explain(as_json)

    def plan(self) -> dict[str, Any]:
        """Give the plan as plain data: what other processes receive, without credentials."""
        return json.loads(self._native.plan())

    def loader(
        self,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        shuffle: str = "window",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epoch_end: str | None = None,
        lanes: int | None = None,
        window: int | None = None,
        steps: int | None = None,
        fill: float | Mapping[str, float] | None = None,
        lists: str | Mapping[str, str] | None = None,
        format: str = "torch",
        pin_memory: bool | str = "auto",
        num_threads: int | None = None,
        memory_limit: int | str | None = None,
        prefetch: int | None = None,
        max_bad_rows: int | None = None,
        max_bad_share: float | None = None,
        bad_rows_to: Uri | None = None,
    ) -> Loader:
        """Make a loader: batches of tensors, epoch after epoch.

        Parameters
        ----------
        batch_size : int, optional
            Samples a step on this rank.
        global_batch_size : int, optional
            Samples a step on all ranks together. Exactly one of the two is given.
        shuffle : {"window", "none", "full"}, default "window"
            ``window`` permutes blocks over the whole epoch and rows within windows of blocks;
            ``none`` is file order; ``full`` is a permutation of all rows, whose columns are decoded
            once and kept for all epochs of the loader, in a quarter of its memory or in a file.
        seed : int, default 0
            Seed of the order and of random operators.
        rank, world_size : int, optional
            This process and their number. Default: Ray Train's, ``torch.distributed``'s, ``RANK``
            and ``WORLD_SIZE``, else 0 and 1.
        epoch_end : {"drop", "pad", "partial"}, optional
            What happens to rows that do not fill a global batch: left out, filled up with repeats
            (marked by a boolean column ``_repeat``), or a smaller batch. Default: ``drop`` with a
            shuffle, ``partial`` without.
        lanes, window : int, optional
            Streams that the epoch is cut into, and blocks that are mixed. Default: from the
            dataset, so that 512 MiB are mixed.
        steps : int, optional
            Steps of one iteration, where `explode` multiplies rows; needed there, and an error
            elsewhere. The next iteration goes on where the one before ended.
        fill : float or mapping, optional
            What stands in place of nulls, for all columns or by column. Default: a null in a dense
            column is an error that names column and row.
        lists : {"error", "ragged", "pad"} or mapping, optional
            Lists of different lengths: an error (default), a `Ragged` of values and offsets, or
            filled up to the longest of the batch.
        format : {"torch", "numpy", "arrow", "dlpack"}, default "torch"
            What ``batch["column"]`` is. None of them copies the slab.
        pin_memory : bool or "auto", default "auto"
            Whether batches are in page-locked memory, from which a GPU copies by itself:
            ``tensor.to(device, non_blocking=True)`` returns at once, and the batch may be dropped
            before its copy is done. ``"auto"`` pins where there is an NVIDIA driver with a device;
            ``True`` says so once where there is none, and batches are in ordinary memory then.
            Pinning starts CUDA on the device that is current, else that of ``LOCAL_RANK``, else the
            first.
        num_threads : int, optional
            CPU threads. Default: the CPUs of the cgroup.
        memory_limit : int or str, optional
            Bytes that this loader may hold, or a size such as ``"2GiB"``. Default: the budget of
            the process.
        prefetch : int, optional
            Batches made ahead. Default: about 64 MiB of them.
        max_bad_rows : int, optional
            Bad rows of an epoch on this rank (see `map_image`) beyond which the epoch ends in a
            `DataError`. Default: any number.
        max_bad_share : float, optional
            The same as a share of the rows delivered, 0 to 1; looked at from 1,000 rows on, and at
            the end of the epoch. Default: any.
        bad_rows_to : str or path, optional
            A local file to which each bad row is added as a line of JSON when its batch is
            delivered: ``file``, ``row_group``, ``row``, ``column``, ``kind``, ``cause``, ``epoch``.
            Ranks and workers on one machine may share a file; give each machine its own. Default:
            they are listed nowhere.

        Returns
        -------
        Loader

        Raises
        ------
        InvalidInputError
            Arguments that do not fit together; the message names them. Among them a `map_image`
            with ``on_error="skip"`` and ``epoch_end="partial"``, the default of
            ``shuffle="none"``, or an `explode`.
        NotFoundError, PermissionDeniedError, StorageError
            A `bad_rows_to` that cannot be opened.
        ResourceError
            A shuffle that does not fit `memory_limit`; the message says what would.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/flights", columns=["distance", "dep_delay"])
        >>> loader = ds.loader(batch_size=512, shuffle="none", fill=float("nan"), format="numpy")
        >>> next(iter(loader))["dep_delay"].shape
        (512,)
        """
        # The arguments as they came, before anything else is a local name.
        given = dict(locals())
        del given["self"]
        text, discovers = loader_options(**given)
        return Loader(self, text, discovers=discovers)

    def write_parquet(
        self,
        uri: Uri,
        *,
        mode: str = "error",
        compression_level: int | None = None,
        row_group_bytes: int | str | None = None,
        file_bytes: int | str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        path_style: bool | None = None,
        anonymous: bool | None = None,
        num_threads: int | None = None,
        max_bad_rows: int | None = None,
        max_bad_share: float | None = None,
        bad_rows_to: Uri | None = None,
    ) -> dict[str, Any]:
        """Write the rows as Parquet files with one manifest.

        All or nothing: files are staged and committed together; a failed run leaves no committed
        output.

        Parameters
        ----------
        uri : str or path
            A folder, or an ``s3://`` prefix.
        mode : {"error", "overwrite", "append"}, default "error"
            What to do when the target holds committed output.
        compression_level : int, optional
            zstd level, 1 to 22. Default: 3.
        row_group_bytes, file_bytes : int or str, optional
            Target sizes, encoded, e.g. ``"64MiB"``. Defaults: 64 MiB and 512 MiB.
        endpoint, region, path_style, anonymous : optional
            As for `read_parquet`.
        num_threads : int, optional
            CPU threads. Default: the CPUs of the cgroup.
        max_bad_rows, max_bad_share, bad_rows_to : optional
            As for `loader`: how many rows may be bad (see `map_image`), and where they are listed.
            Beyond a limit nothing is committed.

        Returns
        -------
        dict
            ``rows_read``, ``rows_written``, ``rows_bad`` (written as null or left out),
            ``bytes_read``, ``bytes_written``, ``files``, ``files_replaced`` and ``seconds``.

        Raises
        ------
        AlreadyExistsError
            The target holds committed output and `mode` is ``error``; or it has Parquet files in
            subfolders that Forebay did not write, and `mode` is ``overwrite``.
        InvalidInputError
            An overwrite of what the dataset reads, or of the current directory.
        """
        sink = _arguments.given(
            uri=_arguments.path("write_parquet", uri),
            mode=mode,
            compression_level=compression_level,
            row_group_bytes=row_group_bytes,
            file_bytes=file_bytes,
            endpoint=endpoint,
            region=region,
            path_style=path_style,
            anonymous=anonymous,
            max_bad_rows=max_bad_rows,
            max_bad_share=_arguments.plain(max_bad_share),
            bad_rows_to=listed("write_parquet", bad_rows_to),
        )
        _arguments.options_json("write_parquet", sink)
        threads = _arguments.options_json("write_parquet", {"num_threads": num_threads})
        sink_json = _arguments.as_json("write_parquet", {"parquet": sink})
        return self._native.write(sink_json, threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plan; the other process lists the files again."""
        return _open, (self._native.plan(),)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self._native.columns())
        return f"forebay.Dataset({columns})"
