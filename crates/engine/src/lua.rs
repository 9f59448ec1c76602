//! Scripts: LuaJIT beside the engine, under the module names that scripts of packet engines know.
//!
//! A script configures the engine, and may bring apps of its own. The engine stays what it is: its
//! own apps run at their own speed, and an app in Lua is called once per breath. Such an app reads
//! and writes [`Link`](crate::Link)s and packets where they lie, through LuaJIT's FFI, so that its
//! loops are compiled (`modules/core/link.lua`).
//!
//! `host` is what scripts can ask of the engine, `instance` what the engine asks of an app in Lua,
//! `direct` what compiled code calls without the detour over the interpreter.
#![allow(unsafe_code)]

use std::path::Path;
use std::process::ExitStatus;
use std::rc::Rc;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use crate::engine::{Engine, Options};
use crate::stop::Signals;

mod c_parts;
mod calls;
mod chain;
mod direct;
mod host;
mod instance;
mod interrupt;
mod memory;
mod modules;
mod sampler;
mod shared;
mod tables;
pub mod traces;

use calls::Calls;
use host::Host;
use interrupt::Armed;
use memory::Memory;
use sampler::Sampler;
use traces::TraceFacts;

/// How scripts run.
#[derive(Default)]
pub struct Settings {
    /// Of the engine that scripts configure.
    pub engine: Options,
    /// All instances of a class share its code, and with it the compiler's traces.
    pub shared: bool,
    /// Asked about a thousand times a second while the engine runs; true ends the run.
    pub stop: Option<fn() -> bool>,
    /// Most memory of the interpreter, in bytes; without a limit it is what the system gives.
    pub memory: Option<usize>,
    /// Runs a subcommand of the command that scripts belong to, for their modules `program.*`.
    pub program: Option<Program>,
}

/// Runs the command with these words.
pub type Program = fn(&[String]) -> std::io::Result<ExitStatus>;

/// Why a script ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The sentence names the file and the line.
    #[error("{0}")]
    Failed(String),
    /// A script's file could not be read.
    #[error("cannot read '{file}': {error}")]
    Read {
        /// Path of the script.
        file: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// [`Settings::stop`] said so.
    #[error("interrupted")]
    Interrupted,
    /// What the interpreter, or the engine behind it, said.
    #[error("cannot start the interpreter: {0}")]
    Start(String),
}

impl From<mlua::Error> for ScriptError {
    fn from(error: mlua::Error) -> Self {
        Self::Start(error.to_string())
    }
}

/// What a line of an interactive session led to.
pub enum Evaluated {
    /// Its values, as `print` shows them.
    Values(Vec<String>),
    /// The line is the beginning of something.
    Incomplete,
}

/// An interpreter and its engine.
pub struct Session {
    // In the order in which they go: the memory outlives what is in it.
    host: Rc<Host>,
    /// `protect(f, ...)`: true and values, or false and a sentence.
    protect: Function,
    armed: Option<Armed>,
    lua: Lua,
    memory: Rc<Memory>,
}

/// As [`Signals::catch`], and SIGINT and SIGTERM also end the script of this process: one that is in
/// a loop is interrupted a third of a second later; if the loop was compiled the process ends, by
/// this signal.
pub fn catch_signals() -> std::io::Result<Signals> {
    Signals::catch_and(interrupt::request)
}

impl Session {
    /// Starts an interpreter with its modules, and an engine without apps.
    pub fn new(settings: Settings) -> Result<Self, ScriptError> {
        // Made first, it goes last if anything below fails.
        let memory = Rc::new(Memory::default());
        // Lua's own pcall stays, which is compiled; the other setting replaces it.
        let options = LuaOptions::new().catch_rust_panics(true);
        // SAFETY: scripts get the FFI and can break memory with it. They are the user's own
        // programs, as in any LuaJIT.
        let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, options) };
        let shared = settings.shared;
        memory.take_over(&lua, settings.memory)?;
        let host = Host::new(&lua, settings)?;
        modules::install(&lua)?;
        lua.load(include_str!("lua/modules/startup.lua")).set_name("@startup.lua").exec()?;
        let require: Function = lua.globals().get("require")?;
        let instances: Table = require.call("shortwire.instances")?;
        instances.set("shared", shared)?;
        let errors: Table = require.call("shortwire.errors")?;
        host.bind(Calls::new(&lua, &instances, &errors.get("sentence")?, &memory)?);
        let protect = errors.get("protect")?;
        let armed = interrupt::arm(&lua)?;
        Ok(Self { host, protect, armed, lua, memory })
    }

    /// Runs a file. `arguments` are what the script gets as `...` and in `main.parameters`.
    pub fn run_file(&self, path: &Path, arguments: &[String]) -> Result<(), ScriptError> {
        let name = path.display().to_string();
        let source =
            std::fs::read(path).map_err(|error| ScriptError::Read { file: name.clone(), error })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        self.search_in(folder.unwrap_or(Path::new(".")))?;
        self.run(&source, &format!("@{name}"), arguments)
    }

    /// Runs a piece of code.
    pub fn run_code(&self, code: &str, arguments: &[String]) -> Result<(), ScriptError> {
        self.run(code.as_bytes(), "=(command line)", arguments)
    }

    /// Loads a module into the global of its name, as `require` does.
    pub fn require(&self, module: &str) -> Result<(), ScriptError> {
        let require: Function = self.lua.globals().get("require")?;
        self.call(require, module).map(drop)
    }

    /// Runs a line of an interactive session, as an expression if it is one. `=x` is `x`, as in
    /// Lua's own.
    pub fn evaluate(&self, line: &str) -> Result<Evaluated, ScriptError> {
        let name = "=(input)";
        let line = line.strip_prefix('=').unwrap_or(line);
        let expression = self.load(format!("return {line}").as_bytes(), name);
        let chunk = match expression.or_else(|_| self.load(line.as_bytes(), name)) {
            Ok(chunk) => chunk,
            Err(ScriptError::Failed(problem)) if problem.contains("near '<eof>'") => {
                return Ok(Evaluated::Incomplete);
            }
            Err(error) => return Err(error),
        };
        let values = self.call(chunk, ())?;
        let tostring: Function = self.lua.globals().get("tostring")?;
        let words = values
            .into_iter()
            .map(|value| Ok(tostring.call::<mlua::LuaString>(value)?.to_string_lossy()));
        Ok(Evaluated::Values(words.collect::<Result<_, mlua::Error>>()?))
    }

    /// Watches the compiler from now on, for [`Self::traces`].
    pub fn watch_traces(&self) -> Result<(), ScriptError> {
        self.traces_module()?.get::<Function>("start")?.call::<()>(())?;
        self.host.sample(Some(Sampler::start(&self.lua)?));
        Ok(())
    }

    /// What the compiler did since [`Self::watch_traces`].
    pub fn traces(&self) -> Result<TraceFacts, ScriptError> {
        let facts: Table = self.traces_module()?.get::<Function>("facts")?.call(())?;
        self.host.sample(None);
        let facts = tables::to_toml(&facts).map_err(ScriptError::Failed)?;
        toml::Value::Table(facts)
            .try_into()
            .map_err(|error: toml::de::Error| ScriptError::Failed(error.to_string()))
    }

    fn traces_module(&self) -> Result<Table, ScriptError> {
        let require: Function = self.lua.globals().get("require")?;
        Ok(require.call("shortwire.traces")?)
    }

    /// Looks at the engine between two runs.
    pub fn with_engine<R>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        self.host.with_engine(look)
    }

    /// Apps in Lua that ended in an error so far.
    pub fn failures(&self) -> u64 {
        self.host.failures()
    }

    /// The libraries in Snabb's sources are found by `require`, behind all others: those that came with
    /// it, too. Anything else but a folder of these sources is an error.
    pub fn search_in_snabb(&self, folder: &Path) -> Result<(), ScriptError> {
        let source = folder.join("src");
        if let Err(error) = std::fs::metadata(source.join("dynasm.lua")) {
            let file = folder.display().to_string();
            return Err(ScriptError::Read { file: format!("{file}/src/dynasm.lua"), error });
        }
        let package: Table = self.lua.globals().get("package")?;
        let mut path: String = package.get("path")?;
        for part in ["src", "lib/ljsyscall", "lib/pflua/src"] {
            path.push_str(&format!(";{}/?.lua", folder.join(part).display()));
        }
        Ok(package.set("path", path)?)
    }

    /// Modules under this folder are found by `require`.
    fn search_in(&self, folder: &Path) -> Result<(), ScriptError> {
        let package: Table = self.lua.globals().get("package")?;
        let path: String = package.get("path")?;
        let folder = folder.display();
        Ok(package.set("path", format!("{folder}/?.lua;{folder}/?/init.lua;{path}"))?)
    }

    fn run(&self, source: &[u8], name: &str, arguments: &[String]) -> Result<(), ScriptError> {
        let main: Table = self.lua.globals().get("main")?;
        main.set("parameters", arguments)?;
        let chunk = self.load(source, name)?;
        let arguments: Vec<Value> = arguments
            .iter()
            .map(|word| Ok(Value::String(self.lua.create_string(word)?)))
            .collect::<Result<_, mlua::Error>>()?;
        self.call(chunk, MultiValue::from_vec(arguments)).map(drop)
    }

    fn load(&self, source: &[u8], name: &str) -> Result<Function, ScriptError> {
        // A first line for the kernel is none for Lua; its end stays, so that lines keep their
        // numbers.
        let skip = if source.starts_with(b"#") {
            source.iter().position(|&byte| byte == b'\n').unwrap_or(source.len())
        } else {
            0
        };
        self.lua.load(&source[skip..]).set_name(name).into_function().map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => ScriptError::Failed(message),
            other => ScriptError::Failed(other.to_string()),
        })
    }

    fn call(
        &self,
        function: Function,
        arguments: impl mlua::IntoLuaMulti,
    ) -> Result<MultiValue, ScriptError> {
        let mut arguments = arguments.into_lua_multi(&self.lua)?;
        arguments.push_front(Value::Function(function));
        let results = self.protect.call::<MultiValue>(arguments);
        let interrupted = interrupt::calm() | self.host.take_interrupted();
        let failed = match &results {
            Ok(results) => results.front() != Some(&Value::Boolean(true)),
            Err(_) => true,
        };
        if let Some(why) = self.memory.take_exhaustion() {
            // What the script had is garbage now, and others may need it.
            let _ = self.lua.gc_collect();
            self.memory.refill();
            // One that the script has caught is not the cause of what failed later.
            let is_cause = match &results {
                Ok(results) => matches!(results.get(1), Some(Value::String(sentence))
                    if sentence.to_string_lossy().contains(memory::ERROR)),
                Err(_) => true,
            };
            if failed && is_cause {
                return Err(ScriptError::Failed(memory::sentence(&why)));
            }
        }
        if failed && interrupted {
            // It may have been raised in front of the call that turns errors into sentences.
            return Err(ScriptError::Interrupted);
        }
        let mut results = results?;
        match results.pop_front() {
            Some(Value::Boolean(true)) => Ok(results),
            _ => Err(ScriptError::Failed(match results.pop_front() {
                Some(Value::String(sentence)) => sentence.to_string_lossy(),
                _ => "an error without a message".to_string(),
            })),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.host.sample(None);
        // Apps in Lua stop while their interpreter is still there.
        self.host.stop();
        drop(self.armed.take());
        self.memory.give_back(&self.lua);
    }
}
