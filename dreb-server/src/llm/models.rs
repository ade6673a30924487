//! The models an agent can use, their credentials and their wire APIs, as one value.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use protocol_schema::Model;
use serde_json::Value;

use super::auth::{self, Credential, Credentials, EnvironmentKeys, KeyError, OAuth};
use super::catalog::{self, ModelName};
use super::models_json::{CustomModel, Headers, ModelsFile, ProviderEntry};
use super::value_forms::{CommandError, Values};
use super::{Provider, Secret, scripted};
use crate::environment::Environment;
use crate::small_file;

/// What stands on the wire for a value that may be secret.
const MASK: &str = "***";

/// Built-in models, those of `models.json` and a script's, with their keys. Cheap to clone; clones
/// share one state.
#[derive(Clone)]
pub struct Models {
    inner: Arc<Inner>,
}

struct Inner {
    models_path: PathBuf,
    auth_path: PathBuf,
    /// The script that the environment names.
    script: Option<PathBuf>,
    values: Values,
    environment_keys: EnvironmentKeys,
    wires: Vec<Arc<dyn Provider>>,
    state: Mutex<State>,
}

/// What may change while the server runs. The lock is never held over an await or a file access.
struct State {
    file: Arc<ModelsFile>,
    file_stamp: Stamp,
    credentials: Arc<Credentials>,
    auth_stamp: Stamp,
    /// Keys of the command line by provider.
    runtime_keys: HashMap<String, Secret>,
    /// Not taken yet.
    warnings: Vec<String>,
    told: HashSet<String>,
}

/// Tells whether a file changed; `None` is a file that cannot be seen.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), data.ino()))
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("models_path", &self.inner.models_path).finish_non_exhaustive()
    }
}

/// What reading the two files gave.
struct Files {
    models: (ModelsFile, Vec<String>),
    models_stamp: Stamp,
    auth: (Credentials, Vec<String>),
    auth_stamp: Stamp,
}

fn read_models(path: &Path) -> (ModelsFile, Vec<String>) {
    match small_file::read(path) {
        Ok(bytes) => ModelsFile::parse(&String::from_utf8_lossy(&bytes), path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
        Err(error) => {
            let message = format!("Failed to load models.json: {error}\n\nFile: {}", path.display());
            (ModelsFile::default(), vec![message])
        }
    }
}

fn read_credentials(path: &Path) -> (Credentials, Vec<String>) {
    match auth::open_file(path) {
        Ok(text) => Credentials::parse(&text, path),
        Err(error) => {
            let message = format!("Stored credentials are not used: {}: {error}", path.display());
            (Credentials::default(), vec![message])
        }
    }
}

fn read_files(models_path: &Path, auth_path: &Path) -> Files {
    // The stamps come first: a change in between is then seen as one later.
    let models_stamp = stamp(models_path);
    let models = read_models(models_path);
    let auth = read_credentials(auth_path);
    Files { models, models_stamp, auth, auth_stamp: stamp(auth_path) }
}

impl Models {
    /// Reads `models.json` and `auth.json` of the agent's folder; makes an empty `auth.json` if there
    /// is none. `wires` are the wire APIs on hand. Commands in header values run now.
    ///
    /// What is wrong with the files is in the messages; nothing of it is fatal.
    pub async fn open(
        agent_dir: &Path,
        environment: Environment,
        wires: Vec<Arc<dyn Provider>>,
    ) -> (Self, Vec<String>) {
        let models_path = agent_dir.join("models.json");
        let auth_path = agent_dir.join("auth.json");
        let script = environment.get(scripted::VARIABLE).map(PathBuf::from);
        let (models_file, auth_file, variables) = (models_path.clone(), auth_path.clone(), environment.clone());
        let read = tokio::task::spawn_blocking(move || {
            let script = script.map(|path| std::path::absolute(&path).unwrap_or(path));
            (read_files(&models_file, &auth_file), EnvironmentKeys::look_up(variables), script)
        });
        let (files, environment_keys, script) = match read.await {
            Ok(read) => read,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Cancelled: the runtime is going away, and this future with it.
                Err(_) => std::future::pending().await,
            },
        };
        let Files { models: (mut file, mut messages), models_stamp, auth: (credentials, more), auth_stamp } = files;
        messages.extend(more);
        let values = Values::new(environment);
        messages.extend(file.resolve(&values).await);
        add_script(&mut file, script.as_deref());
        let told = messages.iter().cloned().collect();
        let state = State {
            file: Arc::new(file),
            file_stamp: models_stamp,
            credentials: Arc::new(credentials),
            auth_stamp,
            runtime_keys: HashMap::new(),
            warnings: Vec::new(),
            told,
        };
        let state = Mutex::new(state);
        let inner = Inner { models_path, auth_path, script, values, environment_keys, wires, state };
        (Self { inner: Arc::new(inner) }, messages)
    }

    /// Reads `models.json` and `auth.json` again if they changed. The messages are those of
    /// [`Models::open`].
    pub async fn refresh(&self) -> Vec<String> {
        let (old_models, old_auth) = {
            let state = self.state();
            (state.file_stamp, state.auth_stamp)
        };
        let inner = Arc::clone(&self.inner);
        let read = tokio::task::spawn_blocking(move || {
            let models_stamp = stamp(&inner.models_path);
            let models = (models_stamp != old_models).then(|| read_models(&inner.models_path));
            let auth_stamp = stamp(&inner.auth_path);
            let auth = (auth_stamp != old_auth).then(|| read_credentials(&inner.auth_path));
            (models.map(|models| (models, models_stamp)), auth.map(|auth| (auth, auth_stamp)))
        });
        let Ok((models, auth)) = read.await else { return Vec::new() };
        let mut messages = Vec::new();
        if let Some(((mut file, errors), stamp)) = models {
            messages.extend(errors);
            messages.extend(file.resolve(&self.inner.values).await);
            add_script(&mut file, self.inner.script.as_deref());
            let mut state = self.state();
            state.file = Arc::new(file);
            state.file_stamp = stamp;
        }
        if let Some(((credentials, errors), stamp)) = auth {
            messages.extend(errors);
            let mut state = self.state();
            state.credentials = Arc::new(credentials);
            state.auth_stamp = stamp;
        }
        messages
    }

    /// A model by its exact provider and id.
    #[must_use]
    pub fn find(&self, provider: &str, id: &str) -> Option<Arc<Model>> {
        let (file, credentials) = self.snapshot();
        let entry = file.provider(provider);
        let own = entry.and_then(|entry| entry.own_models().find(|model| model.id == id));
        own.or_else(|| {
            let mut model = catalog::find(provider, id)?;
            change(&mut model, entry, &credentials);
            Some(model)
        })
        .map(Arc::new)
    }

    /// The models whose provider has credentials and whose API is on hand, as the files were when they
    /// were last read. Call [`Models::refresh`] before to see changes.
    #[must_use]
    pub fn available(&self) -> Vec<Arc<Model>> {
        let (file, credentials) = self.snapshot();
        let built_in = catalog::providers()
            .filter(|provider| self.has_auth(provider))
            .flat_map(|provider| built_in_models(provider, file.provider(provider), &credentials));
        let added = file
            .providers
            .iter()
            .filter(|entry| self.has_auth(&entry.name))
            .flat_map(ProviderEntry::own_models)
            .filter(|model| !catalog::contains(&model.provider, &model.id));
        built_in.chain(added).filter(|model| self.has_wire(model)).map(Arc::new).collect()
    }

    /// The first of the available models.
    #[must_use]
    pub fn first_available(&self) -> Option<Arc<Model>> {
        let (file, credentials) = self.snapshot();
        let mut built_in = catalog::providers().filter(|provider| self.has_auth(provider));
        let first = built_in.find_map(|name| {
            let mut models = built_in_models(name, file.provider(name), &credentials).into_iter();
            models.find(|model| self.has_wire(model))
        });
        let mut entries = file.providers.iter().filter(|entry| self.has_auth(&entry.name));
        let own = || entries.find_map(|entry| entry.own_models().find(|model| self.has_wire(model)));
        first.or_else(own).map(Arc::new)
    }

    /// Whether the model's API is on hand.
    #[must_use]
    pub fn has_wire(&self, model: &Model) -> bool {
        self.inner.wires.iter().any(|wire| wire.api() == model.api)
    }

    /// The names of all providers that have models, with credentials or without.
    #[must_use]
    pub fn providers(&self) -> Vec<String> {
        let (file, _) = self.snapshot();
        let mut names: Vec<String> = catalog::providers().map(str::to_owned).collect();
        let added = file.providers.iter().filter(|entry| !entry.models.is_empty());
        names.extend(added.map(|entry| entry.name.clone()).filter(|name| !catalog::has_provider(name)));
        names
    }

    /// The names of one provider's models, with credentials or without.
    #[must_use]
    pub fn names_of(&self, provider: &str) -> Vec<ModelName> {
        let (file, _) = self.snapshot();
        let entry = file.provider(provider);
        let mut names = built_in_names(provider, entry);
        names.extend(entry.into_iter().flat_map(added_names));
        names
    }

    /// The names of all models, with credentials or without, in the order of the registry.
    #[must_use]
    pub fn names(&self) -> Vec<ModelName> {
        let (file, _) = self.snapshot();
        let built_in = catalog::providers().flat_map(|provider| built_in_names(provider, file.provider(provider)));
        built_in.chain(file.providers.iter().flat_map(added_names)).collect()
    }

    /// Whether the provider has credentials. Whether they are valid or expired is not looked at.
    #[must_use]
    pub fn has_auth(&self, provider: &str) -> bool {
        let (runtime, file, credentials) = {
            let state = self.state();
            let runtime = state.runtime_keys.contains_key(provider);
            (runtime, Arc::clone(&state.file), Arc::clone(&state.credentials))
        };
        if runtime || credentials.of(provider).is_some() || self.inner.environment_keys.of(provider).is_some() {
            return true;
        }
        file.provider(provider).is_some_and(|entry| {
            let known = entry.api_key.as_ref().and_then(|key| self.inner.values.known(key));
            entry.needs_no_key() || matches!(known, Some(Ok(_)))
        })
    }

    /// The key for a provider: of the command line, else stored, else from the environment, else from
    /// `models.json`. `None` for a provider that needs none.
    ///
    /// # Errors
    ///
    /// There is no key, its command failed (see [`Models::take_warnings`]), or the stored login has
    /// expired.
    pub async fn key(&self, provider: &str) -> Result<Option<Secret>, KeyError> {
        let runtime = self.state().runtime_keys.get(provider).cloned();
        if runtime.is_some() {
            return Ok(runtime);
        }
        let (file, credentials) = self.snapshot();
        match credentials.of(provider) {
            Some(Credential::ApiKey(text)) => return self.value(provider, "auth.json", text).await,
            Some(Credential::OAuth(login)) => return self.login_key(provider, login).await,
            Some(Credential::Unknown) | None => {}
        }
        if let Some(key) = self.inner.environment_keys.of(provider) {
            return Ok(Some(key));
        }
        match file.provider(provider) {
            Some(ProviderEntry { api_key: Some(text), .. }) => self.value(provider, "models.json", text).await,
            Some(entry) if entry.needs_no_key() => Ok(None),
            _ => Err(KeyError::Missing { provider: provider.to_owned() }),
        }
    }

    async fn value(&self, provider: &str, file: &str, text: &Secret) -> Result<Option<Secret>, KeyError> {
        match self.inner.values.resolve(text).await {
            Ok(key) => Ok(Some(key)),
            Err(error) => {
                self.warn(&failed_command(provider, file, &error));
                Err(KeyError::Missing { provider: provider.to_owned() })
            }
        }
    }

    async fn login_key(&self, provider: &str, login: &OAuth) -> Result<Option<Secret>, KeyError> {
        if !login.is_expired(SystemTime::now()) {
            return Ok(Some(login.key(provider)));
        }
        // Another program may have renewed the login.
        for message in self.refresh().await {
            self.warn(&message);
        }
        let (_, credentials) = self.snapshot();
        match credentials.of(provider) {
            Some(Credential::OAuth(login)) if !login.is_expired(SystemTime::now()) => Ok(Some(login.key(provider))),
            _ => Err(KeyError::Expired { provider: provider.to_owned() }),
        }
    }

    /// Sets a key for a provider that goes before all others and is stored nowhere.
    pub fn set_runtime_key(&self, provider: &str, key: Secret) {
        self.state().runtime_keys.insert(provider.to_owned(), key);
    }

    /// Whether the provider is used by a stored login, so that its tokens cost nothing extra.
    #[must_use]
    pub fn uses_subscription(&self, provider: &str) -> bool {
        matches!(self.snapshot().1.of(provider), Some(Credential::OAuth(_)))
    }

    /// The warnings of key look-ups since the last call, each told once.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.state().warnings)
    }

    /// The wire API of this name.
    #[must_use]
    pub fn wire(&self, api: &str) -> Option<Arc<dyn Provider>> {
        self.inner.wires.iter().find(|wire| wire.api() == api).cloned()
    }

    /// The model as clients may see it: header values that may be secret and a password in the
    /// address are masked. The catalog's own headers are public.
    #[must_use]
    pub fn masked(&self, model: &Model) -> Model {
        let mut masked = model.clone();
        if let Some(headers) = &mut masked.headers {
            let public = catalog::find(&model.provider, &model.id).and_then(|model| model.headers).unwrap_or_default();
            for (name, value) in headers.iter_mut() {
                if public.get(name) != Some(value) {
                    *value = Value::from(MASK);
                }
            }
        }
        if let Some((scheme, rest)) = model.base_url.split_once("://") {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            if let Some((_, host)) = authority.rsplit_once('@') {
                masked.base_url = format!("{scheme}://{MASK}@{host}{}", &rest[authority.len()..]);
            }
        }
        masked
    }

    fn warn(&self, message: &str) {
        let mut state = self.state();
        if state.told.insert(message.to_owned()) {
            state.warnings.push(message.to_owned());
        }
    }

    fn snapshot(&self) -> (Arc<ModelsFile>, Arc<Credentials>) {
        let state = self.state();
        (Arc::clone(&state.file), Arc::clone(&state.credentials))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so a panic elsewhere leaves nothing half done.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed_command(provider: &str, file: &str, error: &CommandError) -> String {
    format!("No key for {provider}: its command in {file} {error}")
}

/// The built-in models of a provider, changed or replaced as the file says.
fn built_in_models(provider: &str, entry: Option<&ProviderEntry>, credentials: &Credentials) -> Vec<Model> {
    let mut models = catalog::models_of(provider);
    for model in &mut models {
        change(model, entry, credentials);
    }
    for own in entry.into_iter().flat_map(ProviderEntry::own_models) {
        if let Some(model) = models.iter_mut().find(|model| model.id == own.id) {
            *model = own;
        }
    }
    models
}

/// The names of a provider's built-in models, changed or replaced as the file says.
fn built_in_names(provider: &str, entry: Option<&ProviderEntry>) -> Vec<ModelName> {
    let mut names = catalog::names_of(provider);
    let Some(entry) = entry else { return names };
    let changes = entry.overrides.iter().filter_map(|(id, change)| Some((id, change.name.as_ref()?)));
    let replaced = entry.models.iter().map(|custom| (&custom.model.id, &custom.model.name));
    for (id, name) in changes.chain(replaced) {
        if let Some(known) = names.iter_mut().find(|known| known.id == *id) {
            known.name.clone_from(name);
        }
    }
    names
}

/// The names of the models that the file adds.
fn added_names(entry: &ProviderEntry) -> impl Iterator<Item = ModelName> {
    let models = entry.models.iter().map(|custom| &custom.model);
    let added = models.filter(|model| !catalog::contains(&model.provider, &model.id));
    added.map(|Model { provider, id, name, .. }| ModelName {
        provider: provider.clone(),
        id: id.clone(),
        name: name.clone(),
    })
}

fn change(model: &mut Model, entry: Option<&ProviderEntry>, credentials: &Credentials) {
    if let Some(entry) = entry {
        entry.change(model);
    }
    let own_address = entry.is_some_and(|entry| entry.base_url.is_some());
    if model.provider == "github-copilot"
        && !own_address
        && let Some(Credential::OAuth(login)) = credentials.of("github-copilot")
        && let Some(address) = copilot_address(login)
    {
        model.base_url = address;
    }
}

/// Where a Copilot login is served: the token names a proxy, an enterprise server has its own.
fn copilot_address(login: &OAuth) -> Option<String> {
    let token = login.access.expose();
    let proxy = token.split(';').find_map(|part| part.strip_prefix("proxy-ep=")).filter(|host| !host.is_empty());
    if let Some(host) = proxy {
        let host = host.strip_prefix("proxy.").map_or_else(|| host.to_owned(), |rest| format!("api.{rest}"));
        return Some(format!("https://{host}"));
    }
    login.enterprise_url.as_ref().map(|domain| format!("https://copilot-api.{domain}"))
}

/// Adds the environment's script behind everything else.
fn add_script(file: &mut ModelsFile, script: Option<&Path>) {
    let Some(script) = script else { return };
    let custom = CustomModel { model: scripted::model(script), headers: Headers::new() };
    let entry = file.providers.iter().position(|entry| entry.name == scripted::PROVIDER);
    let mut entry = match entry {
        Some(at) => file.providers.remove(at),
        None => ProviderEntry { name: scripted::PROVIDER.to_owned(), ..ProviderEntry::default() },
    };
    match entry.models.iter_mut().find(|other| other.model.id == scripted::MODEL) {
        Some(other) => *other = custom,
        None => entry.models.push(custom),
    }
    file.providers.push(entry);
}

#[cfg(test)]
mod tests;
