use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::*;
use crate::session::entry::{EntryBody, FORMAT_VERSION, SessionTag};

/// What the next call to the disk does.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// It fails.
    Fail,
    /// A write takes this many bytes; the rest of the call is up to the next fault.
    Short(usize),
}

#[derive(Default)]
struct State {
    /// Content by number; numbers stand for files whatever their name.
    files: Vec<Vec<u8>>,
    names: HashMap<PathBuf, usize>,
    faults: VecDeque<Fault>,
    log: Vec<String>,
}

impl State {
    fn call(&mut self, name: &str) -> io::Result<Fault> {
        self.log.push(name.to_owned());
        match self.faults.pop_front().unwrap_or(Fault::None) {
            Fault::Fail => Err(io::ErrorKind::StorageFull.into()),
            fault => Ok(fault),
        }
    }
}

/// A disk in memory that fails as it is told.
#[derive(Clone, Default)]
struct FaultyDisk(Arc<Mutex<State>>);

struct FaultyFile {
    disk: FaultyDisk,
    number: usize,
    position: u64,
}

impl FaultyDisk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn fail_with(&self, faults: &[Fault]) {
        self.state().faults = faults.iter().copied().collect();
    }

    fn content(&self, name: &str) -> Option<String> {
        let state = self.state();
        let number = state.names.get(Path::new(name))?;
        Some(String::from_utf8(state.files[*number].clone()).unwrap())
    }

    fn file(&self, number: usize) -> Box<dyn LogFile> {
        Box::new(FaultyFile { disk: self.clone(), number, position: 0 })
    }

    /// As another program would: not through the faults.
    fn append(&self, name: &str, text: &str) {
        let mut state = self.state();
        let number = state.names[Path::new(name)];
        state.files[number].extend_from_slice(text.as_bytes());
    }

    fn remove(&self, name: &str) {
        self.state().names.remove(Path::new(name)).unwrap();
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state();
        state.call("create")?;
        let number = match state.names.get(path) {
            Some(&number) => number,
            None => {
                state.files.push(Vec::new());
                let number = state.files.len() - 1;
                state.names.insert(path.into(), number);
                number
            }
        };
        state.files[number].clear();
        drop(state);
        Ok(self.file(number))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state();
        state.call("open")?;
        let number = state.names.get(path).copied();
        drop(state);
        number.map(|number| self.file(number)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.call("rename")?;
        let number = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.into(), number);
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        self.state().call("sync folder").map(|_| ())
    }
}

impl LogFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let count = match state.call("write")? {
            Fault::Short(count) => count.clamp(1, bytes.len()),
            _ => bytes.len(),
        };
        state.files[self.number].extend_from_slice(&bytes[..count]);
        self.position = state.files[self.number].len() as u64;
        Ok(count)
    }

    fn position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }

    fn len(&mut self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.number].len() as u64)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.call("truncate")?;
        state.files[self.number].truncate(usize::try_from(len).unwrap());
        Ok(())
    }

    fn ends_whole(&mut self) -> io::Result<bool> {
        Ok(self.disk.state().files[self.number].last().is_none_or(|last| *last == b'\n'))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.state().call("sync").map(|_| ())
    }

    fn is_at(&mut self, path: &Path) -> io::Result<Location> {
        Ok(match self.disk.state().names.get(path) {
            Some(number) if *number == self.number => Location::Same,
            Some(_) => Location::Other,
            None => Location::Gone,
        })
    }
}

const PATH: &str = "/s/a.jsonl";
const PENDING: &str = "/s/a.jsonl.pending";

fn header() -> SessionHeader {
    SessionHeader {
        kind: SessionTag::Session,
        version: FORMAT_VERSION,
        id: "s".into(),
        timestamp: "t".into(),
        cwd: "/w".into(),
        parent_session: None,
        agent_type: None,
        extra: Default::default(),
    }
}

fn writer() -> (FaultyDisk, Writer<FaultyDisk>) {
    let disk = FaultyDisk::default();
    (disk.clone(), Writer::new(disk, PATH.into(), header()))
}

fn entry(id: &str, body: EntryBody) -> Arc<Entry> {
    Arc::new(Entry { id: id.into(), parent_id: None, timestamp: "t".into(), body, extra: Default::default() })
}

fn start(id: &str) -> Arc<Entry> {
    entry(id, EntryBody::ModelChange { provider: "p".into(), model_id: "m".into() })
}

fn note(id: &str) -> Arc<Entry> {
    entry(id, EntryBody::SessionInfo { name: Some("n".into()) })
}

fn answer(id: &str) -> Arc<Entry> {
    let answer = protocol_schema::AssistantMessage::empty("a", "p", "m", 1);
    entry(id, EntryBody::from(protocol_schema::AgentMessage::Assistant(answer)))
}

fn lines(entries: &[Arc<Entry>]) -> String {
    let mut text = serde_json::to_string(&header()).unwrap() + "\n";
    for entry in entries {
        text.push_str(std::str::from_utf8(&entry.encode().unwrap()).unwrap());
        text.push('\n');
    }
    text
}

/// Adds entries and makes one attempt.
fn store(writer: &mut Writer<FaultyDisk>, entries: &[Arc<Entry>]) -> (usize, bool) {
    for entry in entries {
        writer.push(Arc::clone(entry));
    }
    let progress = writer.attempt();
    (progress.stored, progress.failure.is_none())
}

#[test]
fn start_entries_alone_leave_no_file() {
    let (disk, mut writer) = writer();
    assert_eq!(store(&mut writer, &[start("a"), start("b")]), (2, true));
    assert_eq!(disk.take_log(), Vec::<String>::new());
}

#[test]
fn the_file_is_pending_until_the_first_answer_and_is_synchronised_then() {
    let (disk, mut writer) = writer();
    let entries = [start("a"), note("b"), answer("c"), note("d")];
    store(&mut writer, &entries[..1]);
    assert_eq!(store(&mut writer, &entries[1..2]), (2, true));
    assert_eq!(disk.content(PENDING), Some(lines(&entries[..2])));
    assert_eq!(disk.content(PATH), None);
    assert_eq!(disk.take_log(), ["create", "write", "write", "write", "sync", "sync folder"]);
    assert_eq!(store(&mut writer, &entries[2..3]), (3, true));
    assert_eq!(disk.content(PENDING), None);
    assert_eq!(disk.content(PATH), Some(lines(&entries[..3])));
    assert_eq!(disk.take_log(), ["write", "sync", "rename", "sync", "sync folder"]);
    assert_eq!(store(&mut writer, &entries[3..]), (4, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
    assert_eq!(disk.take_log(), ["write"]);
}

#[test]
fn a_full_disk_keeps_entries_back_in_order() {
    let (disk, mut writer) = writer();
    let entries = [answer("a"), note("b"), note("c"), note("d")];
    store(&mut writer, &entries[..1]);
    disk.fail_with(&[Fault::Fail]);
    assert_eq!(store(&mut writer, &entries[1..2]), (1, false));
    // Opening again works, writing does not.
    disk.fail_with(&[Fault::None, Fault::Fail]);
    assert_eq!(store(&mut writer, &entries[2..3]), (1, false));
    assert_eq!(disk.content(PATH), Some(lines(&entries[..1])));
    assert_eq!(store(&mut writer, &entries[3..]), (4, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
}

#[test]
fn entries_before_the_failing_one_count_as_stored() {
    let (disk, mut writer) = writer();
    let entries = [answer("a"), note("b"), note("c")];
    store(&mut writer, &entries[..1]);
    disk.fail_with(&[Fault::None, Fault::Fail]);
    assert_eq!(store(&mut writer, &entries[1..]), (2, false));
    assert_eq!(disk.content(PATH), Some(lines(&entries[..2])));
}

#[test]
fn a_torn_line_is_cut_off_at_once_or_before_the_next() {
    let (disk, mut writer) = writer();
    let entries = [answer("a"), note("b"), note("c")];
    store(&mut writer, &entries[..1]);
    disk.fail_with(&[Fault::Short(5), Fault::Fail]);
    assert_eq!(store(&mut writer, &entries[1..2]), (1, false));
    assert_eq!(disk.content(PATH), Some(lines(&entries[..1])));
    // Open, part of the line, failure, and the cutting fails too.
    disk.fail_with(&[Fault::None, Fault::Short(5), Fault::Fail, Fault::Fail]);
    assert_eq!(store(&mut writer, &[]), (1, false));
    assert_eq!(disk.content(PATH), Some(lines(&entries[..1]) + "{\"typ"));
    assert_eq!(store(&mut writer, &entries[2..]), (3, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
}

#[test]
fn short_writes_are_completed() {
    let (disk, mut writer) = writer();
    disk.fail_with(&[Fault::None, Fault::Short(1), Fault::Short(7), Fault::None, Fault::Short(3)]);
    let entries = [note("a")];
    assert_eq!(store(&mut writer, &entries), (1, true));
    assert_eq!(disk.content(PENDING), Some(lines(&entries)));
}

#[test]
fn what_others_wrote_behind_a_torn_line_stays() {
    let (disk, mut writer) = writer();
    let entries = [answer("a"), note("b")];
    store(&mut writer, &entries[..1]);
    disk.fail_with(&[Fault::Short(5), Fault::Fail, Fault::Fail]);
    store(&mut writer, &entries[1..]);
    disk.append(PATH, "\n{\"type\":\"theirs\",\"id\":\"t\"}");
    assert_eq!(store(&mut writer, &[]), (2, true));
    let content = disk.content(PATH).unwrap();
    let rest = content.strip_prefix(&lines(&entries[..1])).unwrap();
    let own = String::from_utf8(entries[1].encode().unwrap()).unwrap();
    assert_eq!(rest, format!("{{\"typ\n{{\"type\":\"theirs\",\"id\":\"t\"}}\n{own}\n"));
}

#[test]
fn a_file_that_vanished_is_written_again_whole() {
    let (disk, mut writer) = writer();
    let entries = [start("a"), answer("b"), note("c"), note("d")];
    store(&mut writer, &entries[..3]);
    disk.remove(PATH);
    assert_eq!(store(&mut writer, &entries[3..]), (4, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
    assert_eq!(disk.content(PENDING), None);
}

#[test]
fn a_pending_file_that_vanished_is_written_again_whole() {
    let (disk, mut writer) = writer();
    let entries = [note("a"), answer("b")];
    store(&mut writer, &entries[..1]);
    disk.remove(PENDING);
    assert_eq!(store(&mut writer, &entries[1..]), (2, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
}

#[test]
fn a_file_replaced_by_a_copy_is_continued_there() {
    let (disk, mut writer) = writer();
    let entries = [answer("a"), note("b")];
    store(&mut writer, &entries[..1]);
    disk.remove(PATH);
    let copy = lines(&entries[..1]);
    disk.create(Path::new(PATH)).unwrap();
    disk.append(PATH, copy.trim_end());
    assert_eq!(store(&mut writer, &entries[1..]), (2, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
}

#[test]
fn a_failed_rename_is_reported_and_made_up_for() {
    let (disk, mut writer) = writer();
    let entries = [note("a"), answer("b"), note("c")];
    store(&mut writer, &entries[..1]);
    disk.fail_with(&[Fault::None, Fault::None, Fault::Fail]);
    assert_eq!(store(&mut writer, &entries[1..2]), (1, false));
    assert_eq!(disk.content(PENDING), Some(lines(&entries[..2])));
    assert_eq!(store(&mut writer, &entries[2..]), (3, true));
    assert_eq!(disk.content(PATH), Some(lines(&entries)));
}

/// Whatever fails, the file is the header and the first entries, and at the very end perhaps the
/// beginning of the next line; what is called stored is in it.
fn check(disk: &FaultyDisk, entries: &[Arc<Entry>], stored: usize, removed: bool) -> Result<(), TestCaseError> {
    let whole = lines(entries);
    let content = disk.content(PATH).or_else(|| disk.content(PENDING));
    let Some(content) = content else {
        let only_start = entries.iter().all(|entry| entry.body.is_start_entry());
        // A disk that fails may hide that somebody has removed the file.
        prop_assert!(stored == 0 || only_start || removed, "{stored} entries are said to be in no file");
        return Ok(());
    };
    prop_assert!(whole.starts_with(&content), "{content:?} is no beginning of {whole:?}");
    let present = content.matches('\n').count().saturating_sub(1);
    prop_assert!(present >= stored || removed, "{stored} said, {present} there");
    prop_assert!(disk.content(PATH).is_none() || disk.content(PENDING).is_none(), "two files");
    Ok(())
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![4 => Just(Fault::None), 2 => Just(Fault::Fail), 2 => (1_usize..200).prop_map(Fault::Short)]
}

#[derive(Debug, Clone)]
enum Step {
    Store { kinds: Vec<u8>, faults: Vec<Fault> },
    Remove,
}

fn step() -> impl Strategy<Value = Step> {
    let store = (proptest::collection::vec(0_u8..3, 0..4), proptest::collection::vec(fault(), 0..12))
        .prop_map(|(kinds, faults)| Step::Store { kinds, faults });
    prop_oneof![9 => store, 1 => Just(Step::Remove)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_file_is_always_a_beginning_of_the_session(steps in proptest::collection::vec(step(), 1..12)) {
        let (disk, mut writer) = writer();
        let mut entries = Vec::new();
        let mut removed = false;
        for step in steps {
            match step {
                Step::Store { kinds, faults } => {
                    disk.fail_with(&faults);
                    let first = entries.len();
                    for kind in kinds {
                        let id = entries.len().to_string();
                        entries.push(match kind { 0 => start(&id), 1 => note(&id), _ => answer(&id) });
                    }
                    let (stored, fine) = store(&mut writer, &entries[first..]);
                    prop_assert!(!fine || stored == entries.len());
                    removed &= !fine;
                    check(&disk, &entries, stored, removed)?;
                }
                Step::Remove => {
                    disk.state().names.clear();
                    removed = true;
                }
            }
        }
        // In the end the disk is sound again, and nothing is missing.
        disk.fail_with(&[]);
        entries.push(answer("last"));
        let last = entries.len() - 1;
        prop_assert_eq!(store(&mut writer, &entries[last..]), (entries.len(), true));
        prop_assert_eq!(disk.content(PATH), Some(lines(&entries)));
        prop_assert_eq!(disk.content(PENDING), None);
    }
}
