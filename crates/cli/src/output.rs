//! Output files that are either complete or not there: written beside their name, then renamed.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Checks that a file could be created at `path`, without leaving anything behind. It fails
/// early, before minutes of work, where the directory is missing or can't be written.
///
/// # Errors
/// Those of the operating system.
pub fn probe(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    let temporary = temporary_name(path)?;
    OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    fs::remove_file(&temporary)
}

/// Writes a file so that `path` holds either its old or its complete new content, whatever fails.
///
/// # Errors
/// Those of `content` and of the operating system; the temporary file is removed then.
pub fn write_atomically(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<fs::File>) -> io::Result<()>,
) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    let temporary = temporary_name(path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = (|| {
        let mut out = BufWriter::new(file);
        content(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The first error is the one to report; a leftover that can't be removed either has the
        // same cause.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A name in the same directory, so that the rename stays on one file system.
fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("tilewright-out-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = directory("fail");
        let path = dir.join("y.npy");
        fs::write(&path, b"old").unwrap();
        let result = write_atomically(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("disk on fire"))
        });
        assert_eq!(result.unwrap_err().to_string(), "disk on fire");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        write_atomically(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn unwritable_places_are_found_early() {
        let dir = directory("probe");
        assert!(probe(&dir).is_err());
        assert!(probe(&dir.join("missing/y.npy")).is_err());
        assert!(probe(&dir.join("y.npy")).is_ok());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }
}
