//! Finding the binary under test.
//!
//! A package's integration tests are given the binaries of their own package only, and `dreb`
//! belongs to another one. So it is looked up in the target folder the tests were built into. Cargo
//! leaves a dependency file beside it (`dreb.d`) that names every source it was made from; if the
//! binary is missing or older than one of them, `cargo build` is run with the profile of the tests,
//! by one test process while the others wait; cargo then decides. `DREB_TEST_BIN` names a binary to be used instead.

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
        if !is_fresh(&binary, stamp) {
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

/// Whether the binary is there and no source it was made from is newer, or newer than `stamp`: then
/// cargo last found that there was nothing to do, although some file had been touched.
fn is_fresh(binary: &Path, stamp: SystemTime) -> bool {
    let Some(built) = modified(binary) else { return false };
    let built = built.max(stamp);
    let Ok(rule) = fs::read_to_string(binary.with_extension("d")) else { return false };
    let manifests = ["Cargo.toml", "Cargo.lock", "dreb-server/Cargo.toml", "protocol-schema/Cargo.toml"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifests = manifests.iter().map(|name| root.join(name));
    sources(&rule).into_iter().chain(manifests).all(|source| modified(&source).is_some_and(|time| time <= built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// The prerequisites of a make rule; a space in a path is escaped by a backslash.
fn sources(rule: &str) -> Vec<PathBuf> {
    let Some((_, prerequisites)) = rule.split_once(": ") else { return Vec::new() };
    let mut paths = Vec::new();
    let mut path = String::new();
    let mut characters = prerequisites.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.peek() == Some(&' ') => path.extend(characters.next()),
            ' ' | '\n' => paths.extend((!path.is_empty()).then(|| PathBuf::from(std::mem::take(&mut path)))),
            other => path.push(other),
        }
    }
    paths.extend((!path.is_empty()).then(|| PathBuf::from(path)));
    paths
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
    fn a_dependency_file_names_its_sources() {
        assert_eq!(sources("/t/dreb: /w/a\\ b.rs /w/c.rs\n"), [Path::new("/w/a b.rs"), Path::new("/w/c.rs")]);
        assert_eq!(sources("/t/dreb:"), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_binary_older_than_a_source_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let set = |name: &str, seconds: u64| {
            let time = SystemTime::now() + std::time::Duration::from_secs(seconds);
            File::create(path(name)).unwrap().set_modified(time).unwrap();
        };
        let never = SystemTime::UNIX_EPOCH;
        assert!(!is_fresh(&path("dreb"), never), "missing");
        set("dreb", 60);
        assert!(!is_fresh(&path("dreb"), never), "no dependency file");
        set("a.rs", 30);
        fs::write(path("dreb.d"), format!("dreb: {}\n", path("a.rs").display())).unwrap();
        assert!(is_fresh(&path("dreb"), never));
        set("a.rs", 90);
        assert!(!is_fresh(&path("dreb"), never), "older");
        assert!(is_fresh(&path("dreb"), SystemTime::now() + std::time::Duration::from_secs(120)), "checked since");
    }
}
