"""Processes: early exits, signals, forks, threads. What users see when they leave in the middle."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from s3_server import S3Server
from support import DEADLINE, child, engine_threads, finish, ids, numbered, until

import forebay as fb

PRELUDE = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    import forebay as fb

    def loader(**options):
        ds = fb.read_parquet(sys.argv[1])
        return ds.loader(64, **{"format": "numpy", "epoch_end": "partial", **options})
    """
)


@pytest.fixture
def large(tmp_path: Path) -> str:
    """Enough steps that no prefetch is through with them."""
    return numbered(tmp_path / "large.parquet", 500_000, row_group=5_000)


def _run(code: str, *arguments: str) -> tuple[int, str, str]:
    return finish(child(PRELUDE + textwrap.dedent(code), *arguments))


# --- M3: leaving ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    {
        "sys.exit while prefetching": """
            it = iter(loader(prefetch=16))
            next(it)
            sys.exit(0)
        """,
        "end of the script with a live iterator": """
            it = iter(loader(prefetch=16))
            next(it)
        """,
        "a batch in a global": """
            batch = next(iter(loader()))
        """,
        "a cycle that only the collector sees": """
            class Node: pass
            node = Node()
            node.me, node.it = node, iter(loader())
            next(node.it)
            del node
        """,
        "in a generator that is never closed": """
            def batches():
                for batch in loader():
                    yield batch
            g = batches()
            next(g)
        """,
        "while another thread waits for a batch": """
            it = iter(loader(prefetch=1, num_threads=1))
            def drain():
                for _ in it: pass
            threading.Thread(target=drain, daemon=True).start()
            next(iter(loader()))
        """,
        "nothing was read": "ds = fb.read_parquet(sys.argv[1]); it = loader()",
        "an epoch that was never asked": "it = iter(loader())",
    }.items(),
    ids=lambda pair: pair[0].replace(" ", "-"),
)
def test_m03_exit(large: str, code: tuple[str, str]) -> None:
    status, out, err = _run(code[1], large)
    assert (status, out, err) == (0, "", "")


def test_m03_exit_with_torch_tensors(large: str) -> None:
    status, out, err = _run(
        """
        import torch
        it = iter(loader(format="torch"))
        kept = [next(it)["id"] for _ in range(3)]
        kept = kept[0][:5]
        print(int(kept.sum()) >= 0)
        """,
        large,
    )
    assert (status, out, err) == (0, "True\n", "")


def test_m03_exit_status_of_the_script_stands(large: str) -> None:
    status, _, err = _run("it = iter(loader()); next(it); sys.exit(7)", large)
    assert (status, err) == (7, "")
    status, _, err = _run("it = iter(loader()); next(it); raise KeyError('mine')", large)
    assert status == 1
    assert err.strip().endswith("KeyError: 'mine'")


# --- M5: an early break ---------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["none", "window"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_m05_break_after_one_batch(large: str, shuffle: str, kind: str) -> None:
    loader = fb.read_parquet(large).loader(64, shuffle=shuffle, format=kind, num_threads=3)
    for _batch in loader:
        break
    del _batch
    gc.collect()
    until(lambda: fb.memory().used == 0, f"memory is back: {fb.memory()}")
    read = loader.stats()["bytes_read"]
    del loader
    gc.collect()
    until(lambda: fb.memory().accounts == 0, "the loader's account is closed")
    # The I/O runtime of the process stays; the epoch's CPU threads do not.
    until(lambda: set(engine_threads()) <= {"forebay-io"}, f"threads: {engine_threads()}")
    assert read < os.path.getsize(large) or shuffle == "window"


def test_m05_photographs_break_in_the_middle(photographs: str) -> None:
    dataset = fb.read_parquet(photographs).map_image("image", [fb.Resize([512, 512])], mode="RGB")
    for _ in range(3):
        for _batch in dataset.loader(8, format="numpy", num_threads=2):
            break
        del _batch
        gc.collect()
        until(lambda: fb.memory().used == 0, f"memory is back: {fb.memory()}")


def test_closing_many_loaders_leaves_no_thread_and_no_file(large: str) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        for _batch in fb.read_parquet(large).loader(64, shuffle="none", format="numpy"):
            break

    once()
    gc.collect()
    threads, files = len(engine_threads()), open_files()
    for _ in range(30):
        once()
    gc.collect()
    until(lambda: len(engine_threads()) <= threads, f"threads: {engine_threads()}")
    until(lambda: open_files() <= files, "file descriptors are flat")


def test_import_starts_no_thread() -> None:
    code = "import os, forebay; print(len(os.listdir('/proc/self/task')))"
    # NumPy starts BLAS threads of its own; they are not the question here.
    status, out, err = finish(child(code, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"))
    assert (status, out, err) == (0, "1\n", "")


# --- M8: pin_memory -------------------------------------------------------------------------------


def test_m08_pin_memory_without_a_gpu(large: str, caplog: pytest.LogCaptureFixture) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    loader = fb.read_parquet(large).limit(1000).loader(100, pin_memory=True, shuffle="none")
    for _ in range(2):
        assert len(ids(loader)) == 1000
    notices = [r for r in caplog.records if "pin_memory" in r.getMessage()]
    assert len(notices) == 1
    assert loader.stats()["pinned"] is False
    caplog.clear()
    for options in {"pin_memory": False}, {"pin_memory": "auto"}, {}:
        assert len(ids(fb.read_parquet(large).limit(10).loader(5, **options))) == 10
    assert caplog.records == []


# --- signals --------------------------------------------------------------------------------------


def test_ctrl_c_in_next_raises_and_the_process_goes_on(photographs: str) -> None:
    code = """
        ds = fb.read_parquet(sys.argv[1])
        # One thread, large pictures, one batch of all of them: next() waits for seconds.
        ds = ds.map_image("image", [fb.Resize([3000, 3000])], mode="RGB", dtype="float32")
        it = iter(ds.loader(64, shuffle="none", num_threads=1, prefetch=1, format="numpy"))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            next(it)
            print("came too early")
        except KeyboardInterrupt:
            print("interrupted")
        del it
        small = fb.read_parquet(sys.argv[2]).loader(64, format="numpy", epoch_end="partial")
        print(sum(len(b["id"]) for b in small))
        """
    folder = Path(photographs).parent / "small"
    status, out, err = _run(code, photographs, numbered(folder / "s.parquet", 1000))
    assert (status, err) == (0, "")
    assert out == "interrupted\n1000\n"


def test_ctrl_c_leaves_the_epoch_where_it_was(photographs: str) -> None:
    code = """
        ds = fb.read_parquet(sys.argv[1])
        ds = ds.map_image("image", [fb.Resize([2000, 2000])], mode="RGB", dtype="uint8")
        it = iter(ds.limit(24).loader(8, shuffle="none", num_threads=1, prefetch=1, format="numpy"))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        got = []
        while True:
            try:
                got += next(it)["id"].tolist()
            except KeyboardInterrupt:
                print("interrupted")
            except StopIteration:
                break
        print(got == list(range(24)))
        """
    status, out, err = _run(code, photographs)
    assert (status, err) == (0, "")
    assert out == "interrupted\nTrue\n"


def test_ctrl_c_without_a_handler_ends_the_process(photographs: str) -> None:
    code = """
        ds = fb.read_parquet(sys.argv[1])
        ds = ds.map_image("image", [fb.Resize([3000, 3000])], mode="RGB", dtype="float32")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        for batch in ds.loader(64, shuffle="none", num_threads=1, prefetch=1, format="numpy"):
            pass
        """
    status, _, err = _run(code, photographs)
    assert status == -signal.SIGINT
    assert err.strip().endswith("KeyboardInterrupt")
    assert "panic" not in err


@pytest.mark.parametrize("what", ["count", "loader", "write"])
def test_ctrl_c_in_a_long_call(tmp_path: Path, what: str) -> None:
    path = numbered(tmp_path / "n.parquet", 2_000_000, row_group=100_000)
    out_folder = tmp_path / "out"
    code = """
        ds = fb.read_parquet([sys.argv[1]] * 40).filter("CAST(id AS VARCHAR) LIKE '%9%8%7%6%5%'")
        calls = {
            "count": lambda: ds.count(),
            "loader": lambda: ds.loader(64),
            "write": lambda: ds.write_parquet(sys.argv[3]),
        }
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            calls[sys.argv[2]]()
            print("came too early")
        except KeyboardInterrupt:
            print("interrupted")
        print(fb.memory().used)
        """
    status, out, err = _run(code, path, what, str(out_folder))
    assert (status, err) == (0, "")
    assert out == "interrupted\n0\n"
    assert not out_folder.exists()


@pytest.mark.parametrize("what", ["count", "loader"])
def test_ctrl_c_while_small_blocks_come_fast(tmp_path: Path, what: str) -> None:
    path = numbered(tmp_path / "n.parquet", 20_000, row_group=10)
    code = """
        ds = fb.read_parquet([sys.argv[1]] * 50).filter("half * 3 > id")
        calls = {"count": lambda: ds.count(), "loader": lambda: ds.loader(64)}
        sent = []
        def send():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.3, send).start()
        try:
            calls[sys.argv[2]]()
            print("came too early")
        except KeyboardInterrupt:
            # Generous: a machine under load; the whole scan takes many times as long.
            print("interrupted", time.monotonic() - sent[0] < 2)
        # Tasks of the I/O runtime are dropped by its own threads, a moment later.
        end = time.monotonic() + 10
        while fb.memory().used and time.monotonic() < end:
            time.sleep(0.01)
        print(fb.memory().used)
        """
    status, out, err = _run(code, path, what)
    assert (status, err) == (0, "")
    assert out == "interrupted True\n0\n"


def test_rank_and_world_size_come_together(tmp_path: Path) -> None:
    path = numbered(tmp_path / "n.parquet", 100)
    code = """
        try:
            fb.read_parquet(sys.argv[1]).loader(4)
        except fb.InvalidInputError as e:
            print(e)
        """
    for have, lack in [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")]:
        process = child(PRELUDE + textwrap.dedent(code), path, **{have: "1"})
        status, out, err = finish(process)
        assert (status, err) == (0, "")
        assert f"the variable {have} is set and {lack} is not" in out


def test_loaders_and_batches_refuse_to_be_pickled(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 10))
    loader = dataset.loader(4, format="dlpack")
    tensor = next(iter(loader))["id"]
    batch = next(iter(dataset.loader(4, format="arrow")))
    for value in (loader, tensor, batch):
        for copy_of in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="make the loader in the worker"):
                copy_of(value)


def test_a_handler_of_the_user_runs_while_next_waits(photographs: str) -> None:
    code = """
        class Stop(Exception): pass
        def stop(*_): raise Stop
        signal.signal(signal.SIGUSR1, stop)
        ds = fb.read_parquet(sys.argv[1])
        ds = ds.map_image("image", [fb.Resize([3000, 3000])], mode="RGB", dtype="float32")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            for batch in ds.loader(64, shuffle="none", num_threads=1, prefetch=1, format="numpy"):
                pass
        except Stop:
            print("stopped")
        """
    assert _run(code, photographs) == (0, "stopped\n", "")


# --- forks ----------------------------------------------------------------------------------------


def test_m02_a_forked_child_makes_its_own_loader(large: str) -> None:
    status, out, err = _run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        live = iter(loader())
        next(live)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            rows = sum(len(b["id"]) for b in loader(shuffle="none"))
            print("child", rows, flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print("parent", sum(len(b["id"]) for b in live))
        """,
        large,
    )
    assert (status, err) == (0, "")
    assert out == "child 500000\nparent 499936\n"


def test_m02_the_parents_iterator_in_the_child_is_a_clear_error(large: str) -> None:
    status, out, err = _run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        ds = loader()
        live = iter(ds)
        next(live)
        pid = os.fork()
        if pid == 0:
            try:
                next(live)
            except RuntimeError as e:
                print(e, flush=True)
            # The loader itself is only a description: it starts anew here.
            print(len(next(iter(ds))["id"]), flush=True)
            del live
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        large,
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "parent" in lines[0]
    assert "iter(loader)" in lines[0]
    assert lines[1] == "64"


def _forks(large: str, prepare: str, inherited: str, times: int) -> tuple[int, str, str]:
    """Forks again and again while the parent prefetches; `inherited` runs in every child."""
    return _run(
        f"""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        {prepare}
        for n in range({times}):
            batch = next(live, None)
            if batch is None:
                live = iter(ds)
            pid = os.fork()
            if pid == 0:
                {inherited}
                os._exit(0)
            end = time.monotonic() + 20
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                    sys.exit(f"child {{n}} hangs")
                time.sleep(0.001)
        print("done")
        """,
        large,
    )


def test_m02_whatever_lock_a_thread_of_the_parent_held(large: str) -> None:
    """At each of many forks another thread holds another lock: none of them may be waited for."""
    prepare = "ds = loader(prefetch=4, num_threads=4, shuffle='none'); live = iter(ds)"
    inherited = "next(iter(ds)); del batch, live; ds.stats(); len(ds); ds.state_dict(); del ds"
    assert _forks(large, prepare, inherited, 300) == (0, "done\n", "")


def test_m02_on_s3(s3_environment: S3Server, large: str) -> None:
    """A child opens connections of its own: the parent's are served by threads of the parent."""
    s3_environment.create_bucket("forks")
    s3_environment.put("forks/large.parquet", Path(large).read_bytes())
    prepare = "ds = loader(prefetch=4, shuffle='none'); live = iter(ds)"
    inherited = "assert next(iter(ds))['id'][0] == 0; next(iter(loader(shuffle='none')))"
    assert _forks("s3://forks/large.parquet", prepare, inherited, 20) == (0, "done\n", "")


def test_m02_in_forked_and_spawned_workers(large: str, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(
        PRELUDE
        + textwrap.dedent(
            """
            import multiprocessing, warnings
            warnings.simplefilter("ignore", DeprecationWarning)

            def work(rank):
                batches = loader(rank=rank, world_size=2, shuffle="none", epoch_end="partial")
                return sum(int(b["id"].sum()) for b in batches)

            if __name__ == "__main__":
                next(iter(loader()))
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        print(method, sum(pool.map(work, range(2))))
            """
        )
    )
    result = subprocess.run(
        [sys.executable, str(script), large], capture_output=True, text=True, timeout=2 * DEADLINE
    )
    total = 500_000 * 499_999 // 2
    assert result.stderr == ""
    assert result.stdout == f"fork {total}\nspawn {total}\nforkserver {total}\n"
    assert result.returncode == 0


def test_threads_of_python_share_a_loader(large: str) -> None:
    """Two Python threads on one iterator: every batch goes to one of them."""
    status, out, err = _run(
        """
        lock, rows, it = threading.Lock(), [], iter(loader(shuffle="none"))
        failed = []
        def take():
            while True:
                with lock:
                    batch = next(it, None)
                if batch is None:
                    return
                rows.extend(batch["id"].tolist())
        threads = [threading.Thread(target=take) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(sorted(rows) == list(range(500000)))
        """,
        large,
    )
    assert (status, out, err) == (0, "True\n", "")


def test_one_iterator_in_two_threads_never_ends_early(photographs: str) -> None:
    """A second caller while one waits gets an error that says so, not a silent end."""
    status, out, err = _run(
        """
        ds = fb.read_parquet(sys.argv[1])
        ds = ds.map_image("image", [fb.Resize([1500, 1500])], mode="RGB", dtype="uint8")
        it = iter(ds.limit(64).loader(32, shuffle="none", num_threads=1, format="numpy"))
        got = []
        thread = threading.Thread(target=lambda: got.append(len(next(it)["id"])))
        thread.start()
        while "other thread" not in str(got):
            try:
                got.append(len(next(it)["id"]))
            except RuntimeError as e:
                got.append(str(e))
            except StopIteration:
                got.append("silent end")
                break
        thread.join()
        print([g for g in got if g != 32])
        """,
        photographs,
    )
    assert (status, err) == (0, "")
    assert "other thread" in out
    assert "silent end" not in out
