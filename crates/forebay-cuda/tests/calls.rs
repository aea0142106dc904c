//! Which calls of the driver are made, in which order: seen by a library that takes the driver's place
//! and writes them down. That a real driver does what it says is not seen here.
//!
//! The library must be there when a process starts, so each test runs one of the ignored ones, its
//! scene, in a process of its own.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_cuda::{Absent, Pinned};
use forebay_feed::{Backing, Home, Segment, Shared, Slab, SlabPool};

/// Runs a scene where the driver is this one, and gives the driver's log.
fn play(scene: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().unwrap().success());
    // The name that is tried first: a machine may have a real one.
    std::os::unix::fs::symlink("libcuda.so.1", folder.path().join("libcuda.so")).unwrap();
    let log = folder.path().join("log");
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", scene, "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_CUDA_LOG", &log)
        .env_remove("LOCAL_RANK")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// What the driver has written so far, in a scene.
fn log() -> String {
    std::fs::read_to_string(std::env::var("FAKE_CUDA_LOG").unwrap()).unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::yield_now();
    }
}

/// Puts names in place of addresses, in the order of their appearance.
fn named(log: Vec<String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    let mut name = |word: &str| {
        if !word.starts_with("0x") {
            return word.to_owned();
        }
        let n = seen.iter().position(|s| s == word).unwrap_or_else(|| {
            seen.push(word.to_owned());
            seen.len() - 1
        });
        format!("#{n}")
    };
    log.iter().map(|l| l.split(' ').map(&mut name).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn memory_is_allocated_waited_for_and_freed() {
    let log = named(play("scene_pool", &[]));
    let expected = [
        "init 0",
        "alloc #0 8192 flags 1",
        "synchronize begins on 0",
        "synchronize ends",
        "synchronize begins on 0",
        "synchronize ends",
        "free #0",
    ];
    assert_eq!(log, expected);
}

#[test]
#[ignore = "a scene"]
fn scene_pool() {
    let pinned = Pinned::open().unwrap();
    assert!(pinned.is_pinned());
    let pool = SlabPool::backed(Arc::new(pinned), 2);
    let mut writer = pool.take(5000, None).unwrap();
    assert!(writer.region(0..5000).unwrap().iter().all(|b| *b == 0), "not initialised");
    let slab = writer.freeze().unwrap();
    let at = slab.as_ptr();
    assert_eq!(at.addr() % 4096, 0);
    std::thread::scope(|s| s.spawn(|| drop(slab)).join()).unwrap();
    until("it is free", || pool.free() == 1);
    let again = pool.take(5000, None).unwrap().freeze().unwrap();
    assert_eq!((again.as_ptr(), pool.free()), (at, 0));
    // The pool goes first: the block has no home, and is freed when it has been waited for.
    drop(pool);
    assert!(!log().contains("free"));
    drop(again);
    until("it is freed", || log().contains("free"));
}

#[test]
fn memory_of_another_process_is_registered_while_it_is_mapped() {
    let log = named(play("scene_shared", &[]));
    let expected = [
        "init 0",
        "register #0 8192 flags 1",
        "synchronize begins on 0",
        "synchronize ends",
        "unregister #0",
    ];
    assert_eq!(log, expected);
}

#[test]
#[ignore = "a scene"]
fn scene_shared() {
    struct Sender(OnceLock<usize>);
    impl Home for Sender {
        fn back(&self, block: forebay_feed::Block) {
            self.0.set(block.len()).unwrap();
        }
    }
    let pinned = Pinned::open().unwrap();
    let theirs = Shared.map(5000).unwrap();
    let segment = theirs.segment().unwrap();
    let mapped = Segment::map(1, segment.len, segment.fd.as_ref().unwrap()).unwrap();
    let ours = pinned.pin(mapped);
    let sender = Arc::new(Sender(OnceLock::new()));
    let home = Arc::downgrade(&sender) as std::sync::Weak<dyn Home>;
    drop(Slab::received(ours, 5000, home).unwrap());
    until("the sender has it back", || sender.0.get() == Some(&8192));
    assert!(pinned.is_pinned());
    // The helper drops what the sender does not keep, and ends with the last block.
    drop(pinned);
    until("it is unregistered", || log().contains("unregister"));
}

#[test]
fn every_device_that_is_in_use_is_waited_for() {
    let variables = [("FAKE_CUDA_DEVICES", "3"), ("LOCAL_RANK", "1")];
    let log = play("scene_devices", &variables);
    let waits: Vec<_> = log.iter().filter(|l| l.starts_with("synchronize begins")).collect();
    assert_eq!(waits, ["synchronize begins on 0", "synchronize begins on 1"]);
}

#[test]
#[ignore = "a scene"]
fn scene_devices() {
    let pinned = Pinned::open().unwrap();
    // The consumer's own context, on another device.
    let mut context = std::ptr::null_mut();
    // SAFETY: the place for the answer is valid, and there are three devices.
    let result = unsafe { cudarc::driver::sys::cuDevicePrimaryCtxRetain(&mut context, 0) };
    assert_eq!(result, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
    let pool = SlabPool::backed(Arc::new(pinned), 1);
    drop(pool.take(1, None).unwrap());
    until("it is free", || pool.free() == 1);
}

#[test]
fn the_device_is_that_of_the_thread_before_that_of_the_launcher() {
    let variables = [("FAKE_CUDA_DEVICES", "3"), ("LOCAL_RANK", "1")];
    let log = play("scene_current_device", &variables);
    assert!(log.contains(&"synchronize begins on 2".to_owned()), "{log:?}");
    assert!(!log.contains(&"synchronize begins on 1".to_owned()), "{log:?}");
}

#[test]
#[ignore = "a scene"]
fn scene_current_device() {
    let mut context = std::ptr::null_mut();
    // SAFETY: the places for the answers are valid, and there are three devices.
    unsafe {
        cudarc::driver::sys::cuDevicePrimaryCtxRetain(&mut context, 2).result().unwrap();
        cudarc::driver::sys::cuCtxPushCurrent_v2(context).result().unwrap();
    }
    let pool = SlabPool::backed(Arc::new(Pinned::open().unwrap()), 1);
    drop(pool.take(1, None).unwrap());
    until("it is free", || pool.free() == 1);
    let mut still = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { cudarc::driver::sys::cuCtxGetCurrent(&mut still).result().unwrap() };
    assert_eq!(still, context);
}

#[test]
fn where_the_driver_has_no_memory_batches_are_in_ordinary_memory() {
    let log = play("scene_no_memory", &[("FAKE_CUDA_FAIL", "cuMemHostAlloc")]);
    assert_eq!(log, ["init 0"]);
}

#[test]
#[ignore = "a scene"]
fn scene_no_memory() {
    let pinned = Arc::new(Pinned::open().unwrap());
    let pool = SlabPool::backed(Arc::clone(&pinned) as Arc<dyn Backing>, 1);
    assert!(pinned.is_pinned());
    drop(pool.take(1, None).unwrap());
    assert_eq!(pool.free(), 1);
    assert!(!pinned.is_pinned());
}

#[test]
fn what_cannot_be_waited_for_is_not_used_again() {
    let log = play("scene_no_synchronize", &[("FAKE_CUDA_FAIL", "cuCtxSynchronize")]);
    assert!(!log.iter().any(|line| line.starts_with("free")), "{log:?}");
}

#[test]
#[ignore = "a scene"]
fn scene_no_synchronize() {
    let pool = SlabPool::backed(Arc::new(Pinned::open().unwrap()), 2);
    let first = pool.take(1, None).unwrap().freeze().unwrap();
    let at = first.as_ptr();
    drop(first);
    until("it was waited for", || log().contains("synchronize ends"));
    assert_ne!(pool.take(1, None).unwrap().freeze().unwrap().as_ptr(), at);
}

#[test]
fn a_forked_child_calls_nothing() {
    let log = named(play("scene_fork", &[]));
    // The parent's own slab is released at the end of the scene.
    assert_eq!(log.get(..2).unwrap(), ["init 0", "alloc #0 4096 flags 1"]);
    assert_eq!(log.iter().filter(|line| line.starts_with("init")).count(), 1, "{log:?}");
}

#[test]
#[ignore = "a scene"]
fn scene_fork() {
    unsafe extern "C" {
        safe fn fork() -> i32;
        safe fn _exit(status: i32) -> !;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    }
    let pinned = Arc::new(Pinned::open().unwrap());
    let pool = SlabPool::backed(Arc::clone(&pinned) as Arc<dyn Backing>, 1);
    let slab = pool.take(1, None).unwrap().freeze().unwrap();
    let child = fork();
    if child == 0 {
        let absent = Pinned::open().err() == Some(Absent::Forked);
        drop(slab);
        let own = pool.take(1, None).unwrap().freeze().unwrap();
        let plain = !pinned.is_pinned();
        drop(own);
        // Ordinary memory needs no quarantine.
        _exit(if absent && plain && pool.free() == 1 { 0 } else { 1 });
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(log().lines().count(), 2, "{}", log());
}

#[test]
fn a_driver_without_devices_is_told_from_none() {
    play("scene_no_device", &[("FAKE_CUDA_DEVICES", "0")]);
    play("scene_broken", &[("FAKE_CUDA_FAIL", "cuInit")]);
}

#[test]
#[ignore = "a scene"]
fn scene_no_device() {
    assert_eq!(Pinned::open().err(), Some(Absent::NoDevice));
}

#[test]
#[ignore = "a scene"]
fn scene_broken() {
    let broken = Pinned::open().unwrap_err().to_string();
    assert_eq!(broken, "the CUDA driver does not work: cuInit gave CUDA_ERROR_OUT_OF_MEMORY");
}
