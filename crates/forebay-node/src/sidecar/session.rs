//! One connection: what the trainer asks for, and what it holds until it is gone.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::feed::client::CREDIT;
use forebay::feed::protocol::message::{Facts, Reply, Request, VERSION, decode};
use forebay::feed::protocol::wire::{self, Received, Receiver};
use forebay::plan::Plan;
use forebay::{
    Dataset, Destination, Error, ErrorKind, Loader, LoaderOptions, LoaderState, Result, Share,
    Source,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::House;
use super::link::Link;
use super::run::Run;
use super::socket::Peer;
use crate::board::{LoaderCard, Registration};

/// How often a quiet connection is looked after.
const TICK: Duration = Duration::from_millis(250);

/// The most iterations of a connection at a time.
const MOST_RUNS: usize = 64;

/// See the module's text.
pub struct Session {
    house: Arc<House>,
    peer: Peer,
    link: Arc<Link>,
    greeted: bool,
    opened: Option<(Loader, Registration)>,
    runs: BTreeMap<u64, Run>,
    /// Iterations that were left, and may still be in the middle of a step.
    left: Vec<Run>,
}

/// Whether the connection goes on.
#[derive(PartialEq, Eq)]
enum Then {
    Continue,
    End,
}

impl Session {
    /// Serves a connection until it ends. `ending` says that the sidecar ends.
    pub fn serve(house: Arc<House>, stream: UnixStream, ending: &AtomicBool) -> Result<()> {
        let peer = Peer::of(&stream);
        let cannot = |e: std::io::Error| {
            Error::new(ErrorKind::Resource, "cannot serve a connection").with_source(e)
        };
        let link = Link::new(stream.try_clone().map_err(cannot)?);
        let peer = match peer {
            Ok(peer) => peer,
            Err(e) => {
                tracing::warn!("refused: {}", e.message());
                return link.fail(&e);
            }
        };
        let _client = house.board.client();
        let mut session = Self {
            house,
            peer,
            link,
            greeted: false,
            opened: None,
            runs: BTreeMap::new(),
            left: Vec::new(),
        };
        let ended = session.listen(&stream, ending);
        // Whatever holds a copy of the trainer's socket, the iterations do not wait for it.
        session.link.close();
        ended
    }

    fn listen(&mut self, stream: &UnixStream, ending: &AtomicBool) -> Result<()> {
        // Where the trainer is killed and a child of it has its socket, the connection stays open.
        let trainer = Pid::from_raw(self.peer.pid.cast_signed());
        let trainer = trainer.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let is_dead = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            trainer.as_ref().is_some_and(|pidfd| {
                let mut polled = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
                poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
            })
        };
        let mut receiver = Receiver::default();
        loop {
            if ending.load(Ordering::Relaxed) {
                self.link.bye();
                return Ok(());
            }
            match receiver.receive(stream.as_fd(), TICK) {
                Ok(Received::Frame(frame)) => {
                    let then = match decode::<Request>(&frame.body) {
                        Ok(request) => self.answer(request, stream)?,
                        Err(e) => {
                            self.link.fail(&e)?;
                            Then::End
                        }
                    };
                    if then == Then::End {
                        return Ok(());
                    }
                }
                Ok(Received::Nothing) if !is_dead() => {}
                Ok(Received::Nothing | Received::Closed) => return Ok(()),
                Err(e) => {
                    let _ = self.link.fail(&e);
                    return Err(e);
                }
            }
            self.left.retain(|run| !run.is_over());
        }
    }

    fn answer(&mut self, request: Request, stream: &UnixStream) -> Result<Then> {
        if !self.greeted && !matches!(request, Request::Hello { .. }) {
            self.link.fail(&Error::invalid("the first message of a connection is hello"))?;
            return Ok(Then::End);
        }
        let reply = match request {
            Request::Hello { protocol, client } => {
                self.greeted = protocol == VERSION;
                let server = format!("forebay {}", env!("CARGO_PKG_VERSION"));
                tracing::debug!(pid = self.peer.pid, client, protocol, "connected");
                self.link.send(&Reply::Welcome { protocol: VERSION, server })?;
                return Ok(if self.greeted { Then::Continue } else { Then::End });
            }
            Request::Taken { run, waited } => {
                self.taken(run, Duration::from_nanos(waited));
                return Ok(Then::Continue);
            }
            Request::Release { segment } => {
                self.link.release(segment);
                return Ok(Then::Continue);
            }
            Request::Stop { run } => {
                if let Some(run) = self.runs.remove(&run) {
                    run.stop();
                    self.left.push(run);
                }
                return Ok(Then::Continue);
            }
            Request::Open { .. } | Request::Start { .. } if self.house.is_stopping() => {
                self.link.bye();
                return Ok(Then::End);
            }
            Request::Start { run, state, first, stride, credit } => {
                match self.start(run, &state, Share { first, stride }) {
                    Ok((epoch, started)) => {
                        // Before the first batch of it, which another thread sends.
                        self.link.send(&started)?;
                        let counted = &self.house.iterations;
                        match Run::start(run, epoch, credit, &self.link, counted) {
                            Ok(running) => _ = self.runs.insert(run, running),
                            Err(e) => {
                                self.link.send(&Reply::Broken { run, failure: (&e).into() })?
                            }
                        }
                        return Ok(Then::Continue);
                    }
                    Err(e) => Err(e),
                }
            }
            Request::Open { plan, options, snapshot } => {
                self.open(&plan, &options, snapshot.as_deref(), stream)
            }
            Request::World { rank, world_size } => self
                .loader()
                .and_then(|loader| loader.set_world(rank, world_size))
                .and_then(|()| self.facts()),
            Request::Load { state } => self.load(&state).and_then(|()| self.facts()),
            Request::Epoch { next, epoch } => self
                .load(&next)
                .and_then(|()| self.loader()?.set_epoch(epoch))
                .and_then(|()| self.facts()),
            Request::Stats => self.loader().map(|loader| Reply::Report {
                json: serde_json::Value::Object(loader.counters()).to_string(),
            }),
            Request::Status => Ok(Reply::Report { json: self.house.board.status_json() }),
        };
        match reply {
            Ok(reply) => self.link.send(&reply)?,
            Err(e) => self.link.fail(&e)?,
        }
        Ok(Then::Continue)
    }

    fn loader(&self) -> Result<&Loader> {
        let opened = self.opened.as_ref().map(|(loader, _)| loader);
        opened.ok_or_else(|| Error::invalid("this connection has opened no loader"))
    }

    fn facts(&self) -> Result<Reply> {
        let loader = self.loader()?;
        let schedule = loader.schedule();
        Ok(Reply::Loader(Facts {
            steps: loader.len(),
            rows: schedule.rows(),
            rank: schedule.spec().rank,
            world_size: schedule.spec().world_size,
            state: loader.state().to_json(),
            next: loader.next_state().to_json(),
        }))
    }

    fn load(&self, state: &str) -> Result<()> {
        match LoaderState::from_json(state)? {
            Some(state) => self.loader()?.load_state(&state),
            None => Ok(()),
        }
    }

    fn open(
        &mut self,
        plan: &str,
        options: &str,
        snapshot: Option<&str>,
        stream: &UnixStream,
    ) -> Result<Reply> {
        if self.opened.is_some() {
            return Err(Error::invalid("this connection has a loader already"));
        }
        let plan = Plan::from_json(plan)?;
        let mut options = LoaderOptions::from_json(options)?;
        // This process's own variables say nothing about the trainer's.
        if options.rank.is_none() && options.world_size.is_none() {
            (options.rank, options.world_size) = (Some(0), Some(1));
        }
        let mut tick = || {
            let gone = || Error::new(ErrorKind::Cancelled, "the trainer is gone");
            if wire::is_closed(stream) { Err(gone()) } else { Ok(()) }
        };
        let dataset = Dataset::from_plan_with(&plan, &mut tick)?;
        let seen = dataset.snapshot().id().to_string();
        if snapshot.is_some_and(|told| told != seen) {
            return Err(Error::new(
                ErrorKind::Changed,
                "the sidecar sees other files than the trainer did",
            )
            .with_hint("make the dataset anew; if the files are the same, look whether both mount the same storage"));
        }
        let destination = Destination {
            backing: self.link.backing(),
            // What its iterations say is later, and the loader's memory is planned now.
            on_the_way: u64::from(CREDIT),
            commons: Some(self.house.commons.clone()),
        };
        let loader =
            Loader::open_for(&dataset, &options, &self.house.budget, destination, &mut tick)?;
        let spec = loader.schedule().spec().clone();
        let card = LoaderCard {
            name: name_of(&plan),
            rank: spec.rank,
            world_size: spec.world_size,
            pid: self.peer.pid,
            uid: self.peer.uid,
            threads: loader.threads(),
            stats: Arc::clone(loader.stats()),
            account: loader.account().clone(),
        };
        let shown = self.house.board.register(card);
        tracing::info!(
            loader = shown.name(),
            rank = spec.rank,
            world_size = spec.world_size,
            pid = self.peer.pid,
            "opened a loader of {} steps",
            loader.len()
        );
        self.opened = Some((loader, shown));
        self.facts()
    }

    fn start(&mut self, run: u64, state: &str, share: Share) -> Result<(forebay::Epoch, Reply)> {
        if self.runs.contains_key(&run) || share.stride == 0 {
            return Err(Error::invalid(format!(
                "an iteration has a number of its own and a stride of 1 or more, not {run} and {}",
                share.stride
            )));
        }
        if self.runs.len() + self.left.len() >= MOST_RUNS {
            return Err(Error::invalid(format!(
                "{MOST_RUNS} iterations of one loader are running already"
            ))
            .with_hint("let go of iterators that are not used any more"));
        }
        self.load(state)?;
        let epoch = self.loader()?.iter_share(share)?;
        let started = Reply::Started {
            state: epoch.state().to_json(),
            again: epoch.restart_state().to_json(),
        };
        Ok((epoch, started))
    }

    fn taken(&self, run: u64, waited: Duration) {
        if let Some(run) = self.runs.get(&run) {
            run.taken();
        }
        if let Some((loader, _)) = &self.opened {
            loader.stats().consumer_wait.add(waited);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for run in self.runs.values() {
            run.stop();
        }
        self.runs.clear();
        self.left.clear();
        // Only now: what is made uses the memory of what has come back.
        self.link.reclaim();
        if let Some((_, shown)) = &self.opened {
            tracing::info!(loader = shown.name(), pid = self.peer.pid, "closed a loader");
        }
    }
}

/// What a loader is called where people see it: the last part of its first path.
fn name_of(plan: &Plan) -> String {
    let Source::Parquet(source) = &plan.source else { return "loader".into() };
    let uri = source.uri.first().or(source.snapshot.as_ref()).map_or("", String::as_str);
    let last = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last.is_empty() { "loader".into() } else { last.into() }
}
