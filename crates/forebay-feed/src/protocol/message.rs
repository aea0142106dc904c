//! The messages, as data.

use forebay_core::{Error, ErrorKind, Location, Result};
use serde::{Deserialize, Serialize};

/// The protocol's version. Both sides have to have the same one; it is raised with every change that an
/// older side would misunderstand.
pub const VERSION: u32 = 1;

/// What a trainer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message of a connection.
    Hello {
        /// [`VERSION`].
        protocol: u32,
        /// Name and version of the program, for logs.
        client: String,
    },
    /// Opens the connection's loader.
    Open {
        /// A plan in JSON, its local paths absolute.
        plan: String,
        /// Loader options in JSON.
        options: String,
        /// The id of the snapshot that the trainer has seen, if any: the sidecar must see the same.
        snapshot: Option<String>,
    },
    /// Rank and world size, where they were not known when the loader was opened.
    World {
        /// This process.
        rank: u64,
        /// Number of processes.
        world_size: u64,
    },
    /// The position is that of a state in JSON.
    Load {
        /// What `state_dict` gave.
        state: String,
    },
    /// The next iteration is to be that of an epoch; a position in it stays.
    Epoch {
        /// The position at which the next iteration would begin, as a state in JSON.
        next: String,
        /// Which epoch.
        epoch: u64,
    },
    /// Starts an iteration.
    Start {
        /// The number that it gets, another one than any before on this connection.
        run: u64,
        /// The state that it begins at.
        state: String,
        /// The first of its steps.
        first: u64,
        /// How many steps on the next one is.
        stride: u64,
        /// How many batches may be sent that were not yet [`Request::Taken`].
        credit: u32,
    },
    /// The trainer took the next batch of an iteration.
    Taken {
        /// Which one.
        run: u64,
        /// How long it waited for it, in nanoseconds.
        waited: u64,
    },
    /// The trainer has let go of all tensors over a segment.
    Release {
        /// Its number.
        segment: u64,
    },
    /// Drops an iteration. There is no reply; what was sent of it meanwhile is released unseen.
    Stop {
        /// Which one.
        run: u64,
    },
    /// Asks for the counters.
    Stats,
    /// Asks for the sidecar's status.
    Status,
}

/// What the sidecar says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// To a hello.
    Welcome {
        /// [`VERSION`].
        protocol: u32,
        /// Name and version of the program, for logs.
        server: String,
    },
    /// To `open`, `world`, `load` and `epoch`: how the loader is now.
    Loader(Facts),
    /// To `start`: the iteration runs.
    Started {
        /// The position at its beginning.
        state: String,
        /// The position at which the next iteration begins, should this one be left.
        again: String,
    },
    /// A batch.
    Batch(Sent),
    /// The end of an iteration.
    End {
        /// Which one.
        run: u64,
        /// The position at which the next one begins.
        state: String,
    },
    /// What was asked for failed.
    Failed(Failure),
    /// An iteration failed; it is over.
    Broken {
        /// Which one.
        run: u64,
        /// Why.
        failure: Failure,
    },
    /// To `stats` and `status`: an object in JSON.
    Report {
        /// The object.
        json: String,
    },
    /// A segment is not used again: it can be unmapped.
    Forget {
        /// Its number.
        segment: u64,
    },
    /// The sidecar is ending: what was sent stays valid, and nothing more comes.
    Bye,
}

/// How a loader is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Steps of an epoch.
    pub steps: u64,
    /// Rows of an epoch on all ranks.
    pub rows: u64,
    /// This process.
    pub rank: u64,
    /// Number of processes.
    pub world_size: u64,
    /// The position, as a state in JSON.
    pub state: String,
    /// The position at which the next iteration begins.
    pub next: String,
}

/// A batch, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// The iteration that it is of.
    pub run: u64,
    /// Number of samples.
    pub rows: u64,
    /// The position after it, as a state in JSON.
    pub state: String,
    /// What its columns lie in.
    pub segments: Vec<Part>,
    /// The columns.
    pub columns: Vec<Named>,
}

/// The part of a segment that a batch uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The segment's number. The first time that it is sent on a connection, its descriptor comes with
    /// the message.
    pub segment: u64,
    /// Bytes of the segment.
    pub len: u64,
    /// Bytes of it that are used, from its beginning.
    pub used: u64,
    /// Whether its descriptor comes with the message.
    pub fresh: bool,
}

/// A column and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Where its values are.
    pub values: Values,
}

/// Where the values of a column are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Values {
    /// One tensor.
    Dense(Tensor),
    /// One tensor a sample.
    Each(Vec<Tensor>),
    /// Lists of different lengths.
    Ragged {
        /// All elements.
        values: Tensor,
        /// Where each list begins, and the end.
        offsets: Tensor,
    },
    /// A column of the Arrow IPC stream that fills the batch's last segment.
    Arrow {
        /// Its place in the stream's schema.
        index: usize,
    },
}

/// A dense tensor in the batch's first segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// The element type, by the name that NumPy has for it.
    pub dtype: String,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// Where it begins, in bytes.
    pub offset: u64,
}

/// An error, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind's name.
    pub kind: String,
    /// What happened.
    pub message: String,
    /// Where in the plan or the arguments.
    pub place: Option<String>,
    /// Path or URI.
    pub file: Option<String>,
    /// Row group of the file.
    pub row_group: Option<u64>,
    /// Row of the file.
    pub row: Option<u64>,
    /// Column.
    pub column: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// The causes, outermost first.
    pub causes: Vec<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = std::error::Error::source(error);
        while let Some(found) = cause {
            causes.push(found.to_string());
            cause = found.source();
        }
        let Location { file, row_group, row, column } = error.location();
        Self {
            kind: error.kind().name().to_owned(),
            message: error.message().to_owned(),
            place: error.place().map(str::to_owned),
            file: file.as_deref().map(str::to_owned),
            row_group: row_group.map(|n| n as u64),
            row: *row,
            column: column.clone(),
            hint: error.hint().map(str::to_owned),
            causes,
        }
    }
}

/// A cause that another process had.
#[derive(Debug)]
struct Cause(String, Option<Box<Cause>>);

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_deref().map(|cause| cause as &(dyn std::error::Error + 'static))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        // A kind that only a later version has.
        let kind = ErrorKind::from_name(&failure.kind).unwrap_or(ErrorKind::Internal);
        let location = Location {
            file: failure.file.map(Into::into),
            row_group: failure.row_group.map(|n| n as usize),
            row: failure.row,
            column: failure.column,
        };
        let mut error = Self::new(kind, failure.message).at(&location);
        if let Some(place) = failure.place {
            error = error.at_place(place);
        }
        if let Some(hint) = failure.hint {
            error = error.with_hint(hint);
        }
        let inner = failure.causes.into_iter().rev();
        match inner.fold(None, |below, text| Some(Cause(text, below.map(Box::new)))) {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

/// A message as a frame's body.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(message)
        .map_err(|e| Error::internal("a message does not fit JSON").with_source(e))
}

/// The message of a frame's body.
///
/// # Errors
/// One that this version does not know; the error names what it does not.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| {
        Error::new(ErrorKind::Unsupported, "a message came over the socket that is not known")
            .with_source(e)
            .with_hint("use the same version of Forebay on both sides")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_error_is_the_same_on_the_other_side() {
        let inner = Cause("premature end".into(), Some(Box::new(Cause("disk".into(), None))));
        let error = Error::new(ErrorKind::Corrupt, "cannot decode the JPEG")
            .at_place("steps[1].map_image")
            .in_file("a.parquet")
            .in_row_group(2)
            .at_row(17)
            .in_column("image")
            .with_hint("mend it")
            .with_source(inner);
        let sent = encode(&Reply::Failed(Failure::from(&error))).unwrap();
        let Reply::Failed(failure) = decode(&sent).unwrap() else { unreachable!() };
        let received = Error::from(failure);
        assert_eq!(received.report(), error.report());
        assert_eq!(received.kind(), error.kind());
        assert_eq!(received.location(), error.location());
        assert_eq!(received.place(), error.place());
    }

    #[test]
    fn every_kind_has_its_name_on_the_other_side() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_name(kind.name()), Some(kind));
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        let error = decode::<Request>(br#"{"say": "dance"}"#).unwrap_err();
        assert!(error.report().contains("dance"), "{}", error.report());
        let error =
            decode::<Request>(br#"{"say": "release", "segment": 1, "why": 1}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
