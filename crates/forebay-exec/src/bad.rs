//! Bad rows: values of the dataset that cannot become what the plan asks for.
//!
//! A value is at fault where it is null, not what its format says, of a kind that nobody here reads,
//! beyond the limits on pictures, or of no use to an operator. Everything else stops a run whatever the
//! policy is: a store that fails, memory that is not there, work that was stopped, a defect, a plan that
//! does not fit the column.

use std::error::Error as _;

use forebay_core::{Error, ErrorKind};
use forebay_plan::OnError;

/// A bad value of a batch.
#[derive(Clone, Debug)]
pub struct BadValue {
    /// The sample.
    pub sample: usize,
    /// The number of the output among the batch's.
    pub output: usize,
    /// What is done about it.
    pub policy: OnError,
    /// Why it is bad, with file, row group, row and column.
    pub error: Error,
}

/// Why there is no picture.
#[derive(Debug)]
pub enum Failure {
    /// The value is at fault.
    Value(Error),
    /// Anything else.
    Run(Error),
}

impl Failure {
    /// Tells an error of decoding one value from others.
    pub fn of(error: Error) -> Self {
        let value = match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::InvalidInput => true,
            // A limit has no cause; memory that could not be had has one.
            ErrorKind::Resource => error.source().is_none(),
            _ => false,
        };
        if value { Self::Value(error) } else { Self::Run(error) }
    }

    /// The error with more said about it.
    #[must_use]
    pub fn map(self, f: impl FnOnce(Error) -> Error) -> Self {
        match self {
            Self::Value(e) => Self::Value(f(e)),
            Self::Run(e) => Self::Run(f(e)),
        }
    }

    /// The error of a bad value that the policy puts up with; any other error as an error.
    pub fn tolerated(self, policy: OnError) -> Result<Error, Error> {
        match (self, policy) {
            (Self::Value(e), OnError::Skip | OnError::Null) => Ok(e),
            (Self::Value(e) | Self::Run(e), _) => Err(e),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Value(e) | Failure::Run(e) => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_are_put_up_with() {
        let value = |kind, source: bool| {
            let error = Error::new(kind, "x");
            let error = if source { error.with_source(std::io::Error::other("y")) } else { error };
            matches!(Failure::of(error), Failure::Value(_))
        };
        for kind in [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::InvalidInput] {
            assert!(value(kind, true), "{kind:?}");
        }
        assert!(value(ErrorKind::Resource, false));
        assert!(!value(ErrorKind::Resource, true), "memory that is not there");
        for kind in [ErrorKind::Io, ErrorKind::Cancelled, ErrorKind::Internal, ErrorKind::Changed] {
            assert!(!value(kind, false), "{kind:?}");
        }
        let bad = || Failure::of(Error::new(ErrorKind::Corrupt, "x"));
        assert!(bad().tolerated(OnError::Raise).is_err());
        assert!(bad().tolerated(OnError::Skip).is_ok());
    }
}
