//! Signals that end the program in order.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay::{Error, ErrorKind, Result};
use tokio::signal::unix::SignalKind;

/// The terminal is gone. The numbers are those of Linux.
const HUP: u32 = 1;

/// A file grew beyond the limit of the process.
const XFSZ: i32 = 25;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether a signal came.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Whether this process was started with the signal ignored.
fn ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// From now on Ctrl-C, SIGTERM and the loss of the terminal are [`stopped`]; a second one ends the process
/// at once.
pub fn listen() -> Result<()> {
    use forebay::runtime::io;
    let runtime = io()?;
    let _guard = runtime.enter();
    let listen = |kind| {
        tokio::signal::unix::signal(kind).map_err(|e| {
            Error::new(ErrorKind::Resource, "cannot listen for signals").with_source(e)
        })
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    // Under nohup the job is meant to outlive its terminal.
    let mut hangup = if ignored(HUP) { None } else { Some(listen(SignalKind::hangup())?) };
    // Having a listener is enough: a write beyond the limit of file sizes then fails as any other
    // write may, instead of ending the process with its staging left behind.
    let mut too_large = listen(SignalKind::from_raw(XFSZ))?;
    runtime.spawn(async move {
        loop {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hung_up => {}
                _ = too_large.recv() => continue,
            }
            if STOPPED.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    });
    Ok(())
}
