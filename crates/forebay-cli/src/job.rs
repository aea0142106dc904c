//! Reading a job file and opening what it names.

use std::path::Path;

use forebay::{Dataset, Error, ErrorKind, JobFile, Result, Source};

/// A job file and its dataset. Errors name the line of the file.
pub fn open(path: &Path) -> Result<(JobFile, Dataset)> {
    let origin = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| {
        use std::io::ErrorKind as Io;
        let hint = match e.kind() {
            Io::PermissionDenied => "check the permissions of the file and of its folders",
            Io::IsADirectory => "it is a folder; give the path of the job file in it",
            Io::InvalidData => "it is not text in UTF-8; a job file is YAML",
            _ => "give the path of a YAML file such as examples/photos.yaml",
        };
        // A job file that is not there is wrong usage of the command, not a failed run.
        Error::new(ErrorKind::InvalidInput, format!("cannot read the job file {origin}"))
            .with_source(e)
            .with_hint(hint)
    })?;
    let job = JobFile::from_yaml(&text, &origin)?;
    let Source::Parquet(source) = &job.plan().source else {
        return Err(Error::internal("unknown kind of source"));
    };
    let read =
        if source.snapshot.is_some() { "source.parquet.snapshot" } else { "source.parquet.uri" };
    // What says no place itself is about the files.
    let dataset = Dataset::from_plan(job.plan()).map_err(|e| job.place(e.at_place(read)))?;
    Ok((job, dataset))
}
