//! Gets entries to the disk in order, whatever the disk does in between.
//!
//! The writer keeps every entry and the number of lines that are whole on disk. A failed attempt
//! leaves that number where it is; the next one goes on from there. So the file is at all times the
//! header and the first entries, and at most the beginning of one more line at its very end.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;

use super::entry::{Entry, SessionHeader};
use super::names::pending_path;

/// An open session file. The seam that tests put failures into.
pub(super) trait LogFile: Send {
    /// One write at the end of the file; may write less than given.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Where the last write ended, in bytes from the start.
    fn position(&mut self) -> io::Result<u64>;
    fn len(&mut self) -> io::Result<u64>;
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Whether the file is empty or its last byte is a line feed.
    fn ends_whole(&mut self) -> io::Result<bool>;
    fn sync(&mut self) -> io::Result<()>;
    /// Whether `path` still names this file.
    fn is_at(&mut self, path: &Path) -> io::Result<Location>;
}

/// What stands at the path of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// The file itself.
    Same,
    /// Another file.
    Other,
    /// Nothing.
    Gone,
}

/// The file system.
pub(super) trait Disk: Send {
    /// Makes an empty file, and the folders above it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes new and renamed files in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The real one.
#[derive(Debug)]
pub(super) struct RealDisk;

struct RealFile(File);

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // Append and truncate exclude each other on opening.
        let file = open_regular(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600))?;
        file.set_len(0)?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(RealFile(open_regular(path, OpenOptions::new().read(true).append(true))?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Not every file system can, and a folder may be closed to reading.
            Err(error) if is_optional(&error) => Ok(()),
            result => result,
        }
    }
}

impl LogFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn position(&mut self) -> io::Result<u64> {
        self.0.stream_position()
    }

    fn len(&mut self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn ends_whole(&mut self) -> io::Result<bool> {
        if self.0.metadata()?.len() == 0 {
            return Ok(true);
        }
        let mut last = [0];
        self.0.seek(SeekFrom::End(-1))?;
        self.0.read_exact(&mut last)?;
        Ok(last == [b'\n'])
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.0.sync_data() {
            Err(error) if is_optional(&error) => Ok(()),
            result => result,
        }
    }

    fn is_at(&mut self, path: &Path) -> io::Result<Location> {
        let own = self.0.metadata()?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Ok(Location::Same),
            Ok(_) => Ok(Location::Other),
            Err(error) if is_absent(&error) => Ok(Location::Gone),
            Err(error) => Err(error),
        }
    }
}

/// Opens a file, but nothing that would take lines and not keep them, such as a pipe.
fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether a failure to synchronise means that the file system does not do it.
fn is_optional(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

/// The beginning of a line that a failed write left at the end of the file.
#[derive(Debug, Clone, Copy)]
struct Torn {
    start: u64,
    end: u64,
}

/// One session's way to the disk.
pub(super) struct Writer<D> {
    disk: D,
    path: PathBuf,
    header: SessionHeader,
    entries: Vec<Arc<Entry>>,
    /// Whole lines on disk, the header counted.
    lines: usize,
    /// Whether the file has its final name.
    published: bool,
    /// Whether the first write has been made durable.
    synced: bool,
    file: Option<Box<dyn LogFile>>,
    torn: Option<Torn>,
    /// Whether the end of the file is to be looked at: it was opened, not made.
    unchecked: bool,
}

/// How far an attempt came: entries that are safe, and what stopped it.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) stored: usize,
    pub(super) failure: Option<io::Error>,
}

/// Rounds of one attempt; more than one when the file vanishes under it.
const ROUNDS: usize = 3;

impl<D: Disk> Writer<D> {
    pub(super) fn new(disk: D, path: PathBuf, header: SessionHeader) -> Self {
        Self {
            disk,
            path,
            header,
            entries: Vec::new(),
            lines: 0,
            published: false,
            synced: false,
            file: None,
            torn: None,
            unchecked: false,
        }
    }

    /// Adds an entry to what shall be on disk.
    pub(super) fn push(&mut self, entry: Arc<Entry>) {
        self.entries.push(entry);
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Writes everything that is not on disk yet.
    pub(super) fn attempt(&mut self) -> Progress {
        // A session in which nothing has happened leaves no file.
        if self.lines == 0 && self.entries.iter().all(|entry| entry.body.is_start_entry()) {
            return Progress { stored: self.entries.len(), failure: None };
        }
        let before = self.lines.saturating_sub(1);
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the session file is being removed");
        for _ in 0..ROUNDS {
            match self.round() {
                Ok(true) => return Progress { stored: self.entries.len(), failure: None },
                Ok(false) => {}
                Err(error) => {
                    failure = error;
                    break;
                }
            }
        }
        // Of an attempt that wrote all and then failed to name or secure the file nothing counts.
        let written = self.lines.saturating_sub(1);
        let stored = if written == self.entries.len() { before.min(written) } else { written };
        Progress { stored, failure: Some(failure) }
    }

    /// Makes what is written durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.sync())
    }

    /// One try; `false` if the file was gone and everything has to be written again.
    fn round(&mut self) -> io::Result<bool> {
        if !self.open()? {
            return Ok(false);
        }
        while self.lines <= self.entries.len() {
            let line = self.line(self.lines)?;
            if let Err(error) = self.write_line(&line) {
                // A handle may be dead for good (a network file system); the next try opens again.
                self.file = None;
                return Err(error);
            }
            self.lines += 1;
        }
        Ok(self.publish()? && self.settle()?)
    }

    fn current_path(&self) -> PathBuf {
        if self.published { self.path.clone() } else { pending_path(&self.path) }
    }

    /// Sees to an open file; `false` if the one that was there is gone.
    fn open(&mut self) -> io::Result<bool> {
        let path = self.current_path();
        if self.lines == 0 {
            self.file = Some(self.disk.create(&path)?);
            self.torn = None;
            return Ok(true);
        }
        if let Some(file) = &mut self.file {
            match file.is_at(&path)? {
                Location::Same => return Ok(true),
                // Replaced by a copy; what comes now goes there.
                Location::Other => {
                    self.file = None;
                    self.torn = None;
                }
                Location::Gone => return Ok(self.start_over()),
            }
        }
        match self.disk.open(&path) {
            Ok(file) => {
                self.file = Some(file);
                self.unchecked = true;
                Ok(true)
            }
            Err(error) if is_absent(&error) => Ok(self.start_over()),
            Err(error) => Err(error),
        }
    }

    /// Forgets the file: all lines are to be written, into a new one. Returns `false`.
    fn start_over(&mut self) -> bool {
        self.file = None;
        self.lines = 0;
        self.published = false;
        self.synced = false;
        self.torn = None;
        self.unchecked = false;
        false
    }

    fn line(&self, number: usize) -> io::Result<Vec<u8>> {
        let mut line = match number.checked_sub(1) {
            None => serde_json::to_vec(&self.header)?,
            Some(place) => self.entries[place].encode()?,
        };
        line.push(b'\n');
        Ok(line)
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.mend()?;
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut written = 0;
        while written < line.len() {
            let error = match file.write(&line[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if written > 0 {
                let end = file.position().or_else(|_| file.len())?;
                self.torn = Some(Torn { start: end.saturating_sub(written as u64), end });
                // If this fails too, the next attempt begins with it.
                let _ = self.mend();
            }
            return Err(error);
        }
        Ok(())
    }

    /// Sees to it that the file ends with a whole line: cuts off what a failed write left behind.
    fn mend(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        match self.torn {
            Some(torn) if file.len()? == torn.end => file.truncate(torn.start)?,
            // Somebody else has written since, or left a line open; cutting would take theirs.
            Some(_) => end_line(file.as_mut())?,
            None if self.unchecked => end_line(file.as_mut())?,
            None => {}
        }
        self.torn = None;
        self.unchecked = false;
        Ok(())
    }

    /// Gives the file its final name once it holds an answer; `false` if it is gone.
    fn publish(&mut self) -> io::Result<bool> {
        if self.published || !self.entries.iter().any(|entry| entry.body.is_assistant()) {
            return Ok(true);
        }
        self.sync()?;
        match self.disk.rename(&pending_path(&self.path), &self.path) {
            Ok(()) => {
                self.published = true;
                self.synced = false;
                Ok(true)
            }
            Err(error) if is_absent(&error) => Ok(self.start_over()),
            Err(error) => Err(error),
        }
    }

    /// Makes the first write durable, and looks whether the file is still there; `false` if not.
    fn settle(&mut self) -> io::Result<bool> {
        let path = self.current_path();
        let Some(file) = &mut self.file else { return Ok(false) };
        if file.is_at(&path)? == Location::Gone {
            return Ok(self.start_over());
        }
        if !self.synced {
            file.sync()?;
            if let Some(folder) = path.parent() {
                self.disk.sync_folder(folder)?;
            }
            self.synced = true;
        }
        Ok(true)
    }
}

/// Ends an unfinished last line.
fn end_line(file: &mut dyn LogFile) -> io::Result<()> {
    if !file.ends_whole()? && file.write(b"\n")? != 1 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
