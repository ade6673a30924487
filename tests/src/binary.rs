//! Finding the binary under test.
//!
//! A package's integration tests are given the binaries of their own package only, and `dreb`
//! belongs to another one. So it is looked up in the target folder the tests were built into, where
//! `cargo test --workspace` has put it. If it is missing or older than a file it is made from,
//! `cargo build` is run with the profile of the tests, by one test process while the others wait;
//! cargo then decides. `DREB_TEST_BIN` names a binary to be used instead.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

/// Path of a `dreb` that is up to date.
///
/// # Panics
///
/// It cannot be built.
pub fn dreb() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("DREB_TEST_BIN") {
        Some(path) => PathBuf::from(path),
        None => Layout::of_tests().fresh_binary(),
    })
}

/// Where cargo put this test.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    /// `target`, or what stands for it.
    target: PathBuf,
    /// `x86_64-unknown-linux-gnu` and the like, when built with `--target`.
    triple: Option<String>,
    /// `debug`, `release` or the name of a profile.
    profile: String,
}

impl Layout {
    fn of_tests() -> Self {
        let test = std::env::current_exe().expect("a process knows its executable");
        Self::of(&test, |folder| folder.join("CACHEDIR.TAG").exists())
    }

    /// From `<target>[/<triple>]/<profile>/deps/<test>`; `is_target` knows the target folder.
    fn of(test: &Path, is_target: impl Fn(&Path) -> bool) -> Self {
        let name = |path: &Path| path.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let folder = test.ancestors().find(|path| path.ends_with("deps")).and_then(Path::parent);
        let folder = folder.unwrap_or_else(|| panic!("{} is not in a target folder", test.display()));
        let parent = folder.parent().expect("a profile's folder has a parent");
        match parent.parent() {
            Some(target) if !is_target(parent) && is_target(target) => {
                Self { target: target.into(), triple: Some(name(parent)), profile: name(folder) }
            }
            _ => Self { target: parent.into(), triple: None, profile: name(folder) },
        }
    }

    fn folder(&self) -> PathBuf {
        match &self.triple {
            Some(triple) => self.target.join(triple).join(&self.profile),
            None => self.target.join(&self.profile),
        }
    }

    fn fresh_binary(&self) -> PathBuf {
        let binary = self.folder().join("dreb");
        let stamp = self.folder().join("dreb-tests.stamp");
        let is_new = !stamp.exists();
        let lock = OpenOptions::new().create(true).append(true).open(stamp).expect("the target folder can be written");
        // Held until the end of the function; test processes that come later find the binary fresh.
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error): (File, _)| error).unwrap();
        // A file that was just made says nothing about the binary.
        let stamp = if is_new { None } else { lock.metadata().and_then(|meta| meta.modified()).ok() };
        let stamp = stamp.unwrap_or(SystemTime::UNIX_EPOCH);
        if !is_fresh(&binary, stamp, &Path::new(env!("CARGO_MANIFEST_DIR")).join("..")) {
            let begun = SystemTime::now();
            self.build();
            lock.set_modified(begun).expect("an own file can be touched");
        }
        binary
    }

    fn build(&self) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--package", "dreb-server", "--bin", "dreb", "--quiet"]);
        command.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")]);
        command.arg("--target-dir").arg(&self.target);
        match self.profile.as_str() {
            "debug" => {}
            profile => {
                command.args(["--profile", profile]);
            }
        }
        if let Some(triple) = &self.triple {
            command.args(["--target", triple]);
        }
        let output = command.output().expect("cargo can be started");
        assert!(output.status.success(), "dreb does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What the binary is made from.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "dreb-server/Cargo.toml",
    "dreb-server/src",
    "dreb-server/data",
    "protocol-schema/Cargo.toml",
    "protocol-schema/src",
];

/// Whether the binary is there and nothing below `root` that it is made from is newer, or newer than
/// `stamp`: then cargo last found that there was nothing to do, although some file had been touched.
fn is_fresh(binary: &Path, stamp: SystemTime, root: &Path) -> bool {
    let Some(built) = modified(binary) else { return false };
    let newest = SOURCES.iter().filter_map(|source| newest(&root.join(source))).max();
    newest.is_some_and(|newest| newest <= built.max(stamp))
}

/// The latest change of a file or of anything in a folder.
fn newest(path: &Path) -> Option<SystemTime> {
    let inside = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    inside.filter_map(|entry| newest(&entry.path())).chain(modified(path)).max()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn the_layout_is_read_from_the_path_of_a_test() {
        let is_target = |path: &Path| path == Path::new("/w/target");
        let plain = Layout::of(Path::new("/w/target/debug/deps/runs-0123"), is_target);
        assert_eq!(plain, Layout { target: "/w/target".into(), triple: None, profile: "debug".into() });
        assert_eq!(plain.folder(), Path::new("/w/target/debug"));
        let cross = Layout::of(Path::new("/w/target/arm/release/deps/runs-0123"), is_target);
        assert_eq!(cross, Layout { target: "/w/target".into(), triple: Some("arm".into()), profile: "release".into() });
    }

    #[test]
    fn a_binary_older_than_a_source_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let set = |name: &str, seconds: u64| {
            let time = SystemTime::now() + std::time::Duration::from_secs(seconds);
            File::create(root.join(name)).unwrap().set_modified(time).unwrap();
        };
        let binary = root.join("dreb");
        let never = SystemTime::UNIX_EPOCH;
        fs::create_dir_all(root.join("dreb-server/src/deep")).unwrap();
        set("dreb-server/src/deep/a.rs", 30);
        assert!(!is_fresh(&binary, never, root), "missing");
        set("dreb", 60);
        assert!(is_fresh(&binary, never, root));
        set("dreb-server/src/deep/a.rs", 90);
        assert!(!is_fresh(&binary, never, root), "older");
        assert!(is_fresh(&binary, SystemTime::now() + std::time::Duration::from_secs(120), root), "checked since");
    }
}
