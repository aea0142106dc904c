//! What the command line says, and numbers as people read them.

use std::fmt::{Display, Write as _};
use std::io::{ErrorKind as Io, Write as _};

use forebay::{Error, ErrorKind, Result};

/// Writes a result to standard output. A reader that went away (`| head`) has what it wants; any other
/// failure (a full disk under `> file`) is one of the run.
pub fn say(text: impl Display) -> Result<()> {
    let mut line = String::new();
    let _ = writeln!(line, "{text}");
    let mut out = std::io::stdout().lock();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != Io::BrokenPipe => {
            Err(Error::new(ErrorKind::Io, "cannot write to standard output").with_source(e))
        }
        _ => Ok(()),
    }
}

/// Writes a notice to standard error, as far as anybody listens.
pub fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
