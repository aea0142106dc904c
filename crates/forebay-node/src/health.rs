//! Whether the daemon lives, and whether it takes work: what an orchestrator asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use forebay::runtime;
use serde::{Deserialize, Serialize};

/// Longest wait for the engine's I/O runtime. Its tasks yield within milliseconds; a machine that is
/// overloaded is given time all the same, since to be taken for dead costs every connection.
const PROBE: Duration = Duration::from_secs(5);

/// Where the daemon is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It does not accept connections yet.
    Starting,
    /// It accepts connections.
    Ready,
    /// It was told to end, and finishes what it has.
    Stopping,
}

/// Says and tells the phase. Cheap to clone; clones are of the same daemon.
#[derive(Clone, Default)]
pub struct Health(Arc<AtomicU8>);

impl Health {
    /// The daemon accepts connections from now on. One that is stopping stays so.
    pub fn ready(&self) {
        let _ = self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The daemon was told to end.
    pub fn stopping(&self) {
        self.0.store(2, Ordering::Relaxed);
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Stopping,
        }
    }
}

/// Whether the engine's I/O runtime answers; where not, why.
pub(crate) async fn alive() -> Result<(), String> {
    let runtime = runtime::io().map_err(|e| e.to_string())?;
    match tokio::time::timeout(PROBE, runtime.spawn(async {})).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => Err(format!("the I/O runtime ended a task: {e}")),
        Err(_) => Err(format!("the I/O runtime gave no answer for {} s", PROBE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_stops_is_never_ready_again() {
        let health = Health::default();
        assert_eq!(health.phase(), Phase::Starting);
        health.clone().ready();
        assert_eq!(health.phase(), Phase::Ready);
        health.stopping();
        health.ready();
        assert_eq!(health.phase(), Phase::Stopping);
    }
}
