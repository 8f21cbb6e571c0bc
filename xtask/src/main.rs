//! The project's jobs, one verb each: `cargo xtask VERB`.
//!
//! Whatever a developer or a CI machine does to this checkout beyond plain cargo
//! commands is a verb here, so that both do the very same thing. What a verb
//! needs from outside (MuJoCo's releases, models, Python packages) it fetches
//! from PyPI by pip into `.deps/`, once; nothing is installed on the machine.
//! One module holds one job ([`test`], [`bench`], ...) or one thing that jobs share
//! ([`deps`], [`cc`], [`workspace`], ...).

mod bench;
mod cc;
mod ctest;
mod demo;
mod deps;
mod header;
mod in_order;
mod lint;
mod loom;
mod memcheck;
mod package;
mod program;
mod pytest;
mod readme;
mod releases;
mod sanitize;
mod soak;
mod step;
mod test;
mod tsan;
mod watched;
mod workspace;

use std::fmt;
use std::process::ExitCode;

use anyhow::Result;
use pico_args::Arguments;

use crate::workspace::Workspace;

/// One job, as it is called and as the help lists it.
struct Verb {
    name: &'static str,
    options: &'static str,
    about: &'static str,
    run: fn(&Workspace, Arguments) -> Result<()>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "test",
        options: "",
        about: "everything that must pass: header, cargo test, ctest, pytest, package, README.md",
        run: test::main,
    },
    Verb {
        name: "lint",
        options: "",
        about: "rustfmt, clippy, rustdoc, ruff and mypy, warnings denied",
        run: lint::main,
    },
    Verb {
        name: "header",
        options: "[--check]",
        about: "write include/rollout.h from the Rust sources, or check that it is up to date",
        run: header::main,
    },
    Verb {
        name: "ctest",
        options: "[--release X]...",
        about: "compile the headers and run the C and C++ tests against MuJoCo's releases",
        run: ctest::main,
    },
    Verb {
        name: "pytest",
        options: "[--release X]... [-- ARGUMENTS]",
        about: "run our Python tests and MuJoCo's own on its releases; ARGUMENTS go to pytest",
        run: pytest::main,
    },
    Verb {
        name: "package",
        options: "",
        about: "make the sdist and the wheel, and try them in a fresh environment",
        run: package::main,
    },
    Verb {
        name: "sanitize",
        options: "",
        about: "the C tests under AddressSanitizer and UndefinedBehaviorSanitizer",
        run: sanitize::main,
    },
    Verb {
        name: "memcheck",
        options: "",
        about: "the C tests under valgrind",
        run: memcheck::main,
    },
    Verb {
        name: "tsan",
        options: "",
        about: "threads of the pool, in Rust and C, under ThreadSanitizer",
        run: tsan::main,
    },
    Verb {
        name: "soak",
        options: "[--seconds N]",
        about: "two pools, used by four threads in every way there is, for a minute",
        run: soak::main,
    },
    Verb {
        name: "loom",
        options: "[MODEL]...",
        about: "run the pool's models in every order of their threads",
        run: loom::main,
    },
    Verb {
        name: "bench",
        options: "[--rounds N] [--threads N] [--output FOLDER]",
        about: "measure the library beside its peers, in C and in Python",
        run: bench::main,
    },
    Verb {
        name: "demo",
        options: "",
        about: "run examples/demo.py, which draws what it rolled out",
        run: demo::main,
    },
    Verb {
        name: "deps",
        options: "",
        about: "fetch what the other verbs need into .deps/ (they do it by themselves)",
        run: deps::main,
    },
];

/// A command line that makes no sense; the exit status then is 2.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl UsageError {
    /// An error that says `message`.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

/// Refuses arguments that the verb has not taken.
pub(crate) fn no_more(arguments: Arguments) -> Result<()> {
    match arguments.finish().first() {
        None => Ok(()),
        Some(argument) => {
            Err(UsageError(format!("unknown argument: {}", argument.to_string_lossy())).into())
        }
    }
}

fn help() -> String {
    let mut text = String::from("Usage: cargo xtask VERB [OPTIONS]\n\n");
    for verb in VERBS {
        let call = format!("{} {}", verb.name, verb.options);
        text += &format!("  {call:45} {}\n", verb.about);
    }
    text
}

fn run() -> Result<()> {
    let mut arguments = Arguments::from_env();
    if arguments.contains(["-h", "--help"]) {
        print!("{}", help());
        return Ok(());
    }
    match arguments.subcommand()?.as_deref() {
        Some("help") => {
            print!("{}", help());
            Ok(())
        }
        Some(name) => match VERBS.iter().find(|verb| verb.name == name) {
            Some(verb) => (verb.run)(&Workspace::find()?, arguments),
            None => Err(UsageError(format!("unknown verb: {name}\n\n{}", help())).into()),
        },
        None => Err(UsageError(format!("no verb given\n\n{}", help())).into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The alternate form prints the whole chain of causes on one line.
            eprintln!("xtask: {error:#}");
            let usage = error.is::<UsageError>() || error.is::<pico_args::Error>();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}
