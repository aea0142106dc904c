//! Running other programs, and saying so.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a chore ends with: nothing, or what to tell the person who typed it.
pub type Outcome<T = ()> = Result<T, String>;

/// The root of the repository.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// A program that runs in the root of the repository, with cargo's own variables taken out: they
/// belong to the cargo that started this one, and a build script that watches them would run again.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let inherited = text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_MANIFEST_")
            || matches!(&*text, "CARGO_PRIMARY_PACKAGE" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME");
        if inherited {
            command.env_remove(&name);
        }
    }
    command
}

/// Cargo, the same one that runs this program.
pub fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Show a command, run it, and fail if it fails.
pub fn run(command: &mut Command) -> Outcome {
    println!("\n$ {}", shown(command));
    quietly(command)
}

/// Run a command without showing it, and fail if it fails.
pub fn quietly(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|e| format!("cannot run `{}`: {e}", shown(command)))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("`{}` failed ({status})", shown(command)))
}

/// Run a command, keep its output to itself, and show it only if it fails.
pub fn silently(command: &mut Command) -> Outcome {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("cannot run `{}`: {e}", shown(command)))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "`{}` failed ({})\n{}{}",
        shown(command),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    ))
}

/// What a command prints, if it runs and succeeds.
pub fn answer(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Whether a program can be started.
pub fn exists(program: &str, argument: &str) -> bool {
    answer(command(program).arg(argument)).is_some()
}

/// A command as a person would type it in the root of the repository.
fn shown(command: &Command) -> String {
    let root = root();
    let word = |text: &OsStr| {
        let text = Path::new(text).strip_prefix(&root).map_or(text, Path::as_os_str);
        let text = text.to_string_lossy().into_owned();
        if text.is_empty() || text.contains([' ', '\n', '"', '\'', '*', '$', '(', '|', ';', '<']) {
            format!("'{text}'")
        } else {
            text
        }
    };
    let program = Path::new(command.get_program());
    let program =
        if program.ends_with("cargo") { OsStr::new("cargo") } else { program.as_os_str() };
    let mut line = word(program);
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&word(argument));
    }
    line
}
