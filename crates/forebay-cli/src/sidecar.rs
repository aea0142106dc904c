//! `forebay sidecar` and `forebay top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay::{Result, remote};
use forebay_node::logs::{self, LogFormat};
use forebay_node::{Board, Sidecar, http, sidecar, top};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::signals;
use crate::text::say;

#[derive(Args)]
pub struct SidecarArgs {
    /// The Unix socket that trainers connect to, e.g. /run/forebay/forebay.sock.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// What all loaders together may hold, e.g. 8GiB. Default: FOREBAY_MEMORY_LIMIT, else half of the
    /// container's memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Where metrics, probes and the status page are served, e.g. 127.0.0.1:9464; port 0 takes a free one.
    /// Default: nowhere.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Seconds for which trainers may go on after SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    grace: u32,
    /// What is logged: error, warn, info, debug, trace or off, also for parts (info,forebay_io=debug).
    /// Default: FOREBAY_LOG, else info.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// The form of the log: text or json.
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: String,
}

#[derive(Args)]
pub struct TopArgs {
    /// The sidecar's socket.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// One listing, and no more.
    #[arg(long)]
    once: bool,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    let limits = forebay::plan::MEMORY_LIMIT;
    forebay::plan::parse_size(text)
        .filter(|n| limits.contains(n))
        .ok_or_else(|| "give bytes or a size such as 8GiB, at least 1MiB".to_owned())
}

/// Every batch in a trainer's hands has a descriptor here; the usual soft limit is 1,024.
fn allow_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it is refused, the limit stays as it is, and says so itself when it is reached.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Serves loaders until a signal comes.
pub fn sidecar(args: &SidecarArgs, as_json: bool) -> Result<()> {
    let format: LogFormat = args.log_format.parse()?;
    let _logs = logs::install(args.log.as_deref(), format)?;
    allow_descriptors();
    signals::listen()?;
    let budget = sidecar::budget(args.memory)?;
    let board = Board::new(budget.clone());
    let _sampler = board.sample_every_second()?;
    let server = match &args.metrics {
        Some(address) => Some(http::serve(address, &board)?),
        None => None,
    };
    let sidecar = Sidecar::start(&args.socket, budget, &board)?;
    let page = server.as_ref().map(|server| format!("http://{}", server.address()));
    let socket = sidecar.path().display().to_string();
    if as_json {
        say(json!({"socket": socket, "metrics": page}))?;
    } else {
        let page = page.map_or(String::new(), |page| format!(", status page at {page}"));
        say(format_args!("serving at {socket}{page}"))?;
    }
    while !signals::stopped() {
        std::thread::sleep(Duration::from_millis(100));
    }
    tracing::info!("ending: no new work is taken");
    sidecar.finish(Duration::from_secs(u64::from(args.grace)));
    tracing::info!("ended");
    Ok(())
}

/// Shows what a sidecar does.
pub fn top(args: &TopArgs, as_json: bool) -> Result<()> {
    let out = std::io::stdout();
    let size = rustix::termios::tcgetwinsize(&out).ok();
    let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let once = args.once || !std::io::IsTerminal::is_terminal(&out);
    let options = top::Options { once, json: as_json, width };
    top::run(
        || remote::status(&args.socket, Duration::ZERO, &mut forebay::no_tick),
        options,
        &mut out.lock(),
    )
}
