//! Keeping the output of a command: the end in memory, all of it in a file once it is long.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt;

/// Bytes of output beyond which all of it goes to a file as well.
const FILE_THRESHOLD: usize = 50 * 1024;

/// Decodes UTF-8 that comes in pieces. Invalid bytes become U+FFFD.
#[derive(Debug, Default)]
pub struct Utf8Decoder {
    /// Begin of a character whose rest is still to come, up to 3 bytes.
    partial: Vec<u8>,
}

impl Utf8Decoder {
    /// The text of the next piece.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let mut rest = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            &joined
        };
        let mut text = String::with_capacity(rest.len());
        for chunk in rest.utf8_chunks() {
            text.push_str(chunk.valid());
            rest = &rest[chunk.valid().len()..];
            let invalid = chunk.invalid();
            let is_partial = invalid.len() == rest.len()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_partial {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            rest = &rest[invalid.len()..];
        }
        text
    }

    /// What is left at the end: U+FFFD for a cut character, or nothing.
    #[must_use]
    pub fn finish(self) -> &'static str {
        if self.partial.is_empty() { "" } else { "\u{fffd}" }
    }
}

/// The end of a text that grows.
#[derive(Debug, Default)]
pub struct OutputTail {
    text: String,
    dropped_bytes: usize,
}

impl OutputTail {
    /// Bytes that are kept at least; up to twice as many are held.
    pub const KEPT: usize = 100 * 1024;

    /// Adds text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        if self.text.len() > 2 * Self::KEPT {
            let mut cut = self.text.len() - Self::KEPT;
            while !self.text.is_char_boundary(cut) {
                cut -= 1;
            }
            self.text.drain(..cut);
            self.dropped_bytes += cut;
        }
    }

    /// The end of the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes before it that are gone.
    #[must_use]
    pub fn dropped_bytes(&self) -> usize {
        self.dropped_bytes
    }
}

/// The file for the whole output of one command. It comes into being when the output is long or
/// when it is asked for. A failure to write is remembered, not returned: it must not end the command.
#[derive(Debug)]
pub struct OutputFile {
    folder: PathBuf,
    counted: usize,
    /// Not written yet.
    pending: VecDeque<Bytes>,
    file: Option<File>,
    path: Option<PathBuf>,
    error: Option<io::Error>,
}

/// Where the whole output is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedOutput {
    /// The file, if there is one.
    pub path: Option<PathBuf>,
    /// Why the file is missing or incomplete.
    pub error: Option<String>,
}

impl SavedOutput {
    /// How a notice names the file: its path, or why there is none.
    #[must_use]
    pub fn describe(&self) -> String {
        match (&self.path, &self.error) {
            (Some(path), None) => path.display().to_string(),
            (Some(path), Some(error)) => format!("{} (incomplete: {error})", path.display()),
            (None, Some(error)) => format!("not saved ({error})"),
            (None, None) => "not saved".to_owned(),
        }
    }
}

impl OutputFile {
    /// No file yet; it will be in this folder.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, counted: 0, pending: VecDeque::new(), file: None, path: None, error: None }
    }

    /// Takes output. `counted` is its length as the command wrote it; the sum decides about the file.
    pub fn push(&mut self, bytes: Bytes, counted: usize) {
        self.counted += counted;
        if self.error.is_none() && !bytes.is_empty() {
            self.pending.push_back(bytes);
        }
    }

    /// Writes what was taken, if the output is long enough for a file. Cancel-safe.
    pub async fn flush(&mut self) {
        if self.counted > FILE_THRESHOLD || self.file.is_some() {
            self.write().await;
        }
    }

    /// Writes what was taken in any case. Cancel-safe.
    pub async fn write(&mut self) {
        if self.error.is_none()
            && let Err(error) = self.try_write().await
        {
            self.fail(error);
        }
    }

    async fn try_write(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let (file, path) = create(&self.folder).await?;
                self.path = Some(path);
                none.insert(file)
            }
        };
        while let Some(bytes) = self.pending.front_mut() {
            file.write_buf(bytes).await?;
            if !bytes.has_remaining() {
                self.pending.pop_front();
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) {
        self.pending.clear();
        self.file = None;
        self.error = Some(error);
    }

    /// State of the file now.
    #[must_use]
    pub fn saved(&self) -> SavedOutput {
        SavedOutput { path: self.path.clone(), error: self.error.as_ref().map(ToString::to_string) }
    }

    /// Writes the rest and closes the file.
    pub async fn finish(mut self) -> SavedOutput {
        self.flush().await;
        if let Some(file) = &mut self.file
            && let Err(error) = file.flush().await
        {
            self.fail(error);
        }
        self.saved()
    }
}

/// Makes a new file that only this user may read.
async fn create(folder: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let random = uuid::Uuid::new_v4().simple().to_string();
        // The second half holds the version-free bits.
        let path = folder.join(format!("dreb-bash-{}.log", &random[16..]));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn characters_survive_cuts() {
        let mut decoder = Utf8Decoder::default();
        let text: String = [&b"a\xf0"[..], b"\x9f\x98", b"\x80b\xff", b"\xe2\x82", b"c\xe2"]
            .iter()
            .map(|bytes| decoder.push(bytes))
            .collect();
        assert_eq!(text + decoder.finish(), "a\u{1f600}b\u{fffd}\u{fffd}c\u{fffd}");
    }

    proptest::proptest! {
        #[test]
        fn decoding_in_pieces_is_lossy_decoding(
            pieces in proptest::collection::vec(proptest::collection::vec(proptest::num::u8::ANY, 0..6), 0..12),
        ) {
            let mut decoder = Utf8Decoder::default();
            let mut text: String = pieces.iter().map(|bytes| decoder.push(bytes)).collect();
            text.push_str(decoder.finish());
            let bytes = pieces.concat();
            proptest::prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn the_tail_is_bounded_and_exact() {
        let mut tail = OutputTail::default();
        let piece = "é".repeat(1000);
        for _ in 0..1000 {
            tail.push(&piece);
            assert!(tail.text().len() <= 2 * OutputTail::KEPT);
        }
        assert!(tail.text().len() >= OutputTail::KEPT);
        assert_eq!(tail.text().len() + tail.dropped_bytes(), 2_000_000);
    }

    #[tokio::test]
    async fn short_output_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = OutputFile::new(folder.path().into());
        file.push(Bytes::from(vec![b'x'; FILE_THRESHOLD]), FILE_THRESHOLD);
        assert_eq!(file.finish().await, SavedOutput::default());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn long_output_is_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = OutputFile::new(folder.path().into());
        file.push(Bytes::from(vec![b'x'; FILE_THRESHOLD]), FILE_THRESHOLD);
        file.push(Bytes::from_static(b"y"), 1);
        file.flush().await;
        file.push(Bytes::from_static(b"z"), 1);
        let saved = file.finish().await;
        assert_eq!(saved.error, None);
        let path = saved.path.unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let hex = name.strip_prefix("dreb-bash-").unwrap().strip_suffix(".log").unwrap();
        assert!(hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let content = std::fs::read_to_string(path).unwrap();
        assert_eq!(content, "x".repeat(FILE_THRESHOLD) + "yz");
    }

    #[tokio::test]
    async fn a_failure_is_told_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = OutputFile::new(folder.path().join("missing"));
        file.push(Bytes::from_static(b"x"), FILE_THRESHOLD + 1);
        file.flush().await;
        file.push(Bytes::from_static(b"y"), 1);
        assert_eq!(file.finish().await.describe(), "not saved (No such file or directory (os error 2))");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_is_told_at_the_end() {
        let full = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
        let mut file = OutputFile::new("/unused".into());
        file.file = Some(full);
        file.path = Some("/tmp/x.log".into());
        file.push(Bytes::from_static(b"x"), 1);
        let saved = file.finish().await;
        assert_eq!(saved.describe(), "/tmp/x.log (incomplete: No space left on device (os error 28))");
    }
}
