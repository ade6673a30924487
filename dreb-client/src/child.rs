//! The server's process: found, started, ended.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::error::{ExitReason, StartError};
use crate::leftovers::{TAG_VARIABLE, Tag};
use crate::options::{API_KEY_VARIABLE, RpcClientOptions};

/// Name of the server's binary.
const BINARY: &str = "dreb";
/// Environment variable that names the server's binary.
const BINARY_VARIABLE: &str = "DREB_BIN";

/// How long processes that a server left behind may take to vanish once they are killed.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// The same for a drop, which holds a thread up for so long.
const DROP_PATIENCE: Duration = Duration::from_millis(50);

/// A child process that leads its own process group. Dropping it kills the group and whatever else
/// descends from the child.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    group: Option<Pid>,
    /// `None` with a command prefix: what that command leaves running, say a shared connection of
    /// `ssh`, is its own affair.
    tag: Option<Tag>,
}

/// The three pipes of a child.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

impl ServerProcess {
    /// Starts the server that the options describe.
    pub(crate) async fn spawn(options: &RpcClientOptions) -> Result<(Self, Pipes), StartError> {
        let (program, args) = {
            let options = options.clone();
            // Looks at files, which may lie on a slow file system.
            tokio::task::spawn_blocking(move || command_line(&options))
                .await
                .map_err(|error| StartError::Spawn { program: BINARY.into(), source: io::Error::other(error) })??
        };
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        if let Some(cwd) = &options.cwd {
            command.current_dir(cwd);
        }
        if options.env_clear {
            command.env_clear();
        }
        for (name, value) in &options.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(key) = &options.api_key {
            command.env(API_KEY_VARIABLE, key);
        }
        let tag = options.command_prefix.is_empty().then(Tag::new);
        if let Some(tag) = &tag {
            command.env(TAG_VARIABLE, tag.below(inherited_tags(options).as_deref()));
        }
        #[cfg(feature = "bundled")]
        if options.bundled {
            command.env(crate::bundled::VARIABLE, "1");
        }
        let spawned = command.spawn().and_then(|mut child| {
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
                return Err(io::Error::other("a pipe is missing"));
            };
            let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
            Ok((Self { child, group, tag }, Pipes { stdin, stdout, stderr }))
        });
        spawned.map_err(|source| StartError::Spawn { program, source })
    }

    /// The process id. `None` once it was reaped.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end and kills what is left of the group and of other descendants. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // While a member lives the group's number is not given away; without one there is no group.
        self.signal(Signal::SIGKILL);
        self.group = None;
        if let Some(tag) = self.tag.clone() {
            // Fails only if the runtime is going down; then the drop sees to it.
            if tokio::task::spawn_blocking(move || tag.kill_all(KILL_PATIENCE)).await.is_ok() {
                self.tag = None;
            }
        }
        Ok(status)
    }

    /// Waits, then asks with SIGTERM, then kills; `grace` is the time for each of the first two.
    pub(crate) async fn terminate(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if let Ok(status) = tokio::time::timeout(grace, self.wait()).await {
                return status;
            }
            tracing::debug!(signal = signal.as_str(), "the server did not end in time");
            self.signal(signal);
        }
        self.wait().await
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The only possible failure is that nobody is left.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(tag) = &self.tag {
            tag.kill_all(DROP_PATIENCE);
        }
    }
}

/// The tags that the server would inherit by the options' environment.
fn inherited_tags(options: &RpcClientOptions) -> Option<OsString> {
    let given = options.environment.iter().rev().find(|(name, _)| name == TAG_VARIABLE);
    match given {
        Some((_, value)) => value.clone(),
        None if options.env_clear => None,
        None => std::env::var_os(TAG_VARIABLE),
    }
}

/// How a process ended.
pub(crate) fn reason(status: io::Result<ExitStatus>) -> ExitReason {
    match status {
        Err(error) => ExitReason::Io(error.into()),
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitReason::Code(code),
            (None, Some(signal)) => ExitReason::Signal(signal),
            (None, None) => ExitReason::Disconnected,
        },
    }
}

/// The program to execute and its arguments.
fn command_line(options: &RpcClientOptions) -> Result<(PathBuf, Vec<OsString>), StartError> {
    if let Some(cwd) = &options.cwd {
        check_directory(cwd).map_err(|source| StartError::WorkingDirectory { path: cwd.clone(), source })?;
    }
    let mut args = options.server_args();
    if let Some((program, rest)) = options.command_prefix.split_first() {
        let binary = options.binary.as_ref().map_or_else(|| BINARY.into(), |path| path.clone().into_os_string());
        args.splice(0..0, rest.iter().cloned().chain([binary]));
        return Ok((program.into(), args));
    }
    #[cfg(feature = "bundled")]
    if options.bundled {
        args.insert(0, crate::bundled::ARGUMENT.into());
        let program = std::env::current_exe().map_err(|error| StartError::BinaryNotFound {
            looked_at: vec![format!("the current executable ({error})")],
        })?;
        return Ok((still_there(program), args));
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let sources = Sources {
        option: options.binary.as_deref(),
        variable: variable(BINARY_VARIABLE).map(PathBuf::from),
        executable: std::env::current_exe().ok(),
        path: variable("PATH"),
    };
    Ok((find(&sources)?, args))
}

/// The executable's path; if the file was deleted or replaced since the program started, as an upgrade
/// does, a way to what is running.
#[cfg(feature = "bundled")]
fn still_there(program: PathBuf) -> PathBuf {
    if cfg!(target_os = "linux") && !program.exists() { "/proc/self/exe".into() } else { program }
}

fn check_directory(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Where a binary may be named.
struct Sources<'a> {
    option: Option<&'a Path>,
    variable: Option<PathBuf>,
    executable: Option<PathBuf>,
    path: Option<OsString>,
}

/// The binary, absolute, so that the server's working directory does not matter. A place that was
/// named is the only one looked at.
fn find(sources: &Sources<'_>) -> Result<PathBuf, StartError> {
    let mut looked_at = Vec::new();
    if let Some(named) = sources.option {
        look_for(named, "", sources.path.as_deref(), &mut looked_at)
    } else if let Some(named) = &sources.variable {
        look_for(named, " (from DREB_BIN)", sources.path.as_deref(), &mut looked_at)
    } else {
        let beside = sources.executable.as_ref().map(|executable| executable.with_file_name(BINARY));
        beside
            .and_then(|path| usable(&path, " (beside the current executable)", &mut looked_at))
            .or_else(|| on_path(BINARY.as_ref(), sources.path.as_deref(), &mut looked_at))
    }
    .ok_or(StartError::BinaryNotFound { looked_at })
}

fn look_for(named: &Path, origin: &str, path: Option<&OsStr>, looked_at: &mut Vec<String>) -> Option<PathBuf> {
    if named.components().count() == 1 && !named.as_os_str().as_encoded_bytes().contains(&b'/') {
        return on_path(named, path, looked_at);
    }
    usable(named, origin, looked_at)
}

fn on_path(name: &Path, path: Option<&OsStr>, looked_at: &mut Vec<String>) -> Option<PathBuf> {
    let folders = path.map(std::env::split_paths).into_iter().flatten().filter(|folder| !folder.as_os_str().is_empty());
    let found = folders.map(|folder| folder.join(name)).find_map(|path| usable(&path, "", &mut Vec::new()));
    if found.is_none() {
        looked_at.push(format!("{} on PATH", name.display()));
    }
    found
}

fn usable(path: &Path, origin: &str, looked_at: &mut Vec<String>) -> Option<PathBuf> {
    let checked = std::path::absolute(path).and_then(|path| {
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("not a file"));
        }
        access(&path, AccessFlags::X_OK)?;
        Ok(path)
    });
    match checked {
        Ok(path) => Some(path),
        Err(error) => {
            looked_at.push(format!("{}{origin}: {error}", path.display()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use pretty_assertions::assert_eq;

    use super::*;

    fn executable(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_path_buf()
    }

    #[test]
    fn option_variable_neighbour_and_path_are_looked_at_in_this_order() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let [option, variable, beside, on_path] =
            ["o/dreb", "v/dreb", "b/dreb", "p/dreb"].map(|name| executable(&root.join(name)));
        let mut sources = Sources {
            option: Some(&option),
            variable: Some(variable.clone()),
            executable: Some(root.join("b/host")),
            path: Some(root.join("p").into_os_string()),
        };
        assert_eq!(find(&sources).unwrap(), option);
        sources.option = None;
        assert_eq!(find(&sources).unwrap(), variable);
        sources.variable = None;
        assert_eq!(find(&sources).unwrap(), beside);
        sources.executable = Some(root.join("elsewhere/host"));
        assert_eq!(find(&sources).unwrap(), on_path);
        sources.option = Some(Path::new("dreb"));
        assert_eq!(find(&sources).unwrap(), on_path, "a bare name is looked up on PATH");
    }

    #[test]
    fn what_was_looked_at_is_told_and_a_named_place_has_no_substitute() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        executable(&root.join("p/dreb"));
        fs::write(root.join("plain"), "").unwrap();
        let path = Some(root.join("p").into_os_string());
        let look = |option: Option<&Path>, variable: Option<PathBuf>, executable, path| match find(&Sources {
            option,
            variable,
            executable,
            path,
        })
        .unwrap_err()
        {
            StartError::BinaryNotFound { looked_at } => looked_at,
            other => panic!("{other}"),
        };
        let plain = root.join("plain");
        assert_eq!(
            look(Some(&plain), None, None, path.clone()),
            [format!("{}: Permission denied (os error 13)", plain.display())]
        );
        let missing = root.join("missing");
        let told = look(None, Some(missing.clone()), None, path);
        assert_eq!(told, [format!("{} (from DREB_BIN): No such file or directory (os error 2)", missing.display())]);
        let told = look(None, None, Some(root.join("x/host")), Some("/nowhere".into()));
        assert_eq!(told.len(), 2);
        assert!(told[0].contains("x/dreb (beside the current executable)"), "{told:?}");
        assert_eq!(told[1], "dreb on PATH");
    }

    #[test]
    fn a_prefix_comes_first_and_the_binary_is_not_looked_up() {
        let options = RpcClientOptions::new().command_prefix(["ssh", "-T", "host"]).binary("/remote/dreb");
        let (program, args) = command_line(&options).unwrap();
        assert_eq!(program, Path::new("ssh"));
        assert_eq!(args[..5], ["-T", "host", "/remote/dreb", "--mode", "rpc"]);
        let (_, args) = command_line(&RpcClientOptions::new().command_prefix(["nice"])).unwrap();
        assert_eq!(args[..3], ["dreb", "--mode", "rpc"]);
    }
}
